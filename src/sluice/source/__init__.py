"""FLIP-27's source, without Spark and without a service: splits, offsets, planning, exact reading.

What is named here is public: the contracts an enumerator and a reader fulfil, and what they exchange.
"""

from __future__ import annotations

from sluice.source.enumerator import SplitEnumerator
from sluice.source.log import AnyRecord, IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position, SplitRange
from sluice.source.reader import SplitReader
from sluice.source.slices import Limits
from sluice.source.splits import Lineage, Split, SplitId

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
