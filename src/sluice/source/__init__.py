"""FLIP-27's source, without Spark and without a service: splits, offsets, planning, exact reading.

What is named here is public: the contracts an enumerator and a reader fulfil, and what they exchange.
"""

from __future__ import annotations

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
