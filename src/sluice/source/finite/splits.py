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
        records: for ``maxRecordsPerTrigger``. None: not known; the split then fills a batch.
        version: text that changes if the split is replaced, such as an ETag, or size and time. If a
            split changes after a part of it was planned, Sluice reports a data loss.
    """

    id: str
    size: int = 0
    records: int | None = None
    version: str = ""


@dataclass(frozen=True)
class SplitEnd:
    """A place in a split where a range may end.

    Attributes:
        position: any JSON. No row belongs both to the range that ends here and to the range that starts
            here.
        size, records: of the range that ends here, as in `FiniteSplit`.
    """

    position: Any
    size: int = 0
    records: int | None = None


@dataclass(frozen=True)
class FiniteRange:
    """A part of a split that one task reads.

    Attributes:
        split: id of the split.
        start: position of a `SplitEnd`; None: the start of the split.
        end: None: the end of the split.
        version: of the split when it was planned. `SplitSource.read_range` should raise
            `FileNotFoundError` if the split has another version.
        size: approximate bytes.
    """

    split: str
    start: Any = None
    end: Any = None
    version: str = ""
    size: int = field(default=0, compare=False)
