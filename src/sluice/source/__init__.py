"""FLIP-27's source, without Spark and without a service: splits, offsets, planning, exact reading.

All names here are public. A module is imported when one of its names is first used, because planning,
tasks and ``load()`` need different modules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sluice.source.contracts import BaseSplitEnumerator, Coordinator, ReadTask, Source, SplitEnumerator
    from sluice.source.finite.split_source import SplitSource
    from sluice.source.finite.splits import FiniteRange, FiniteSplit, SplitEnd
    from sluice.source.log_source import LogSource, PushedCursors
    from sluice.source.logs.position_log import PositionLog
    from sluice.source.logs.stream_log import (
        AnyRecord,
        IteratorStart,
        Page,
        Record,
        StreamInfo,
        StreamLog,
        ValueRecord,
    )
    from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position, SplitRange
    from sluice.source.model.splits import Split, SplitId
    from sluice.source.reading.reader import SplitReader
    from sluice.source.settings import Limits, SourceSettings

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
    "contracts": ("BaseSplitEnumerator", "Coordinator", "ReadTask", "Source", "SplitEnumerator"),
    "log_source": ("LogSource", "PushedCursors"),
    "model.offsets": ("After", "AtHorizon", "AtTime", "Closed", "Offsets", "Position", "SplitRange"),
    "logs.position_log": ("PositionLog",),
    "reading.reader": ("SplitReader",),
    "settings": ("Limits", "SourceSettings"),
    "finite.split_source": ("SplitSource",),
    "finite.splits": ("FiniteRange", "FiniteSplit", "SplitEnd"),
    "model.splits": ("Split", "SplitId"),
    "logs.stream_log": (
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
