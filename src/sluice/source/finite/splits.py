"""Splits that end, such as files, and the ranges of them that tasks read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FiniteRange", "FiniteSplit", "SplitEnd"]


@dataclass(frozen=True)
class FiniteSplit:
    """A split as a source lists it. Its content never changes.

    Attributes:
        id: unique among all splits, including those that are no longer listed.
        size: approximate bytes, for ``maxBytesPerTrigger``. 0: not known.
        records: their number, for ``maxRecordsPerTrigger``. None: not known; the split then fills a batch.
        version: text that differs if the split was replaced, such as an ETag, or size and time. If a split
            changes after a part of it was planned, Sluice reports a data loss.
    """

    id: str
    size: int = 0
    records: int | None = None
    version: str = ""


@dataclass(frozen=True)
class SplitEnd:
    """A place in a split where a range may end.

    Attributes:
        position: any JSON. No row is in both the range that ends there and the one that starts there.
        size, records: of the range that ends here, as for a `FiniteSplit`.
    """

    position: Any
    size: int = 0
    records: int | None = None


@dataclass(frozen=True)
class FiniteRange:
    """A part of a split that one task reads.

    Attributes:
        split: its id.
        start: where it starts: the position of a `SplitEnd`; None: at the start of the split.
        end: where it ends; None: at the end of the split.
        version: of the split when it was planned. `SplitSource.read_range` raises `FileNotFoundError` if
            the split that it opens has another version.
        size: bytes, about.
    """

    split: str
    start: Any = None
    end: Any = None
    version: str = ""
    size: int = field(default=0, compare=False)
