"""FLIP-27's source, without Spark and without a service: splits, offsets, planning, exact reading.

What is named here is public: the contracts an enumerator and a reader fulfil, and what they exchange. Each
module is imported when a name of it is asked for: planning, tasks and ``load()`` need different ones.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sluice.source.admission import Limits
    from sluice.source.enumerator import SplitEnumerator
    from sluice.source.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position, SplitRange
    from sluice.source.reader import SplitReader
    from sluice.source.splits import Lineage, Split, SplitId
    from sluice.source.stream_log import AnyRecord, IteratorStart, Page, Record, StreamInfo, StreamLog

__all__ = [
    "After",
    "AnyRecord",
    "AtHorizon",
    "AtTime",
    "Closed",
    "IteratorStart",
    "Limits",
    "Lineage",
    "Offsets",
    "Page",
    "Position",
    "Record",
    "Split",
    "SplitEnumerator",
    "SplitId",
    "SplitRange",
    "SplitReader",
    "StreamInfo",
    "StreamLog",
]

_MODULES: Final = {
    "admission": ("Limits",),
    "enumerator": ("SplitEnumerator",),
    "offsets": ("After", "AtHorizon", "AtTime", "Closed", "Offsets", "Position", "SplitRange"),
    "reader": ("SplitReader",),
    "splits": ("Lineage", "Split", "SplitId"),
    "stream_log": ("AnyRecord", "IteratorStart", "Page", "Record", "StreamInfo", "StreamLog"),
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
