"""FLIP-27's source, without Spark and without a service: splits, offsets, planning, exact reading.

What is named here is public: the contracts an enumerator and a reader fulfil, and what they exchange. Each
module is imported when a name of it is asked for: planning, tasks and ``load()`` need different ones.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sluice.source.admission import Limits
    from sluice.source.contracts import BaseSplitEnumerator, Coordinator, ReadTask, Source, SplitEnumerator
    from sluice.source.log_source import LogSource, PushedCursors
    from sluice.source.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position, SplitRange
    from sluice.source.position_log import PositionLog
    from sluice.source.reader import SplitReader
    from sluice.source.settings import SourceSettings
    from sluice.source.split_source import FiniteRange, FiniteSplit, SplitEnd, SplitSource
    from sluice.source.splits import Lineage, Split, SplitId
    from sluice.source.stream_log import (
        AnyRecord,
        IteratorStart,
        Page,
        Record,
        StreamInfo,
        StreamLog,
        ValueRecord,
    )

__all__ = [
    "After",
    "AnyRecord",
    "AtHorizon",
    "AtTime",
    "BaseSplitEnumerator",
    "Closed",
    "Coordinator",
    "FiniteRange",
    "FiniteSplit",
    "IteratorStart",
    "Limits",
    "Lineage",
    "LogSource",
    "Offsets",
    "Page",
    "Position",
    "PositionLog",
    "PushedCursors",
    "ReadTask",
    "Record",
    "Source",
    "SourceSettings",
    "Split",
    "SplitEnd",
    "SplitEnumerator",
    "SplitId",
    "SplitRange",
    "SplitReader",
    "SplitSource",
    "StreamInfo",
    "StreamLog",
    "ValueRecord",
]

_MODULES: Final = {
    "admission": ("Limits",),
    "contracts": ("BaseSplitEnumerator", "Coordinator", "ReadTask", "Source", "SplitEnumerator"),
    "log_source": ("LogSource", "PushedCursors"),
    "offsets": ("After", "AtHorizon", "AtTime", "Closed", "Offsets", "Position", "SplitRange"),
    "position_log": ("PositionLog",),
    "reader": ("SplitReader",),
    "settings": ("SourceSettings",),
    "split_source": ("FiniteRange", "FiniteSplit", "SplitEnd", "SplitSource"),
    "splits": ("Lineage", "Split", "SplitId"),
    "stream_log": (
        "AnyRecord",
        "IteratorStart",
        "Page",
        "Record",
        "StreamInfo",
        "StreamLog",
        "ValueRecord",
    ),
}
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
