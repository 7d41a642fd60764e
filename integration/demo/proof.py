"""Whether what came out is what went in: read back from the streams, compared as multisets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from integration.demo.events import Click, expected_output, expected_totals
from integration.support.kinesis import Stored


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two multisets of rows, by count and by a checksum that does not depend on order."""

    what: str
    expected: Counter[str]
    found: Counter[str]

    @property
    def is_equal(self) -> bool:
        return self.expected == self.found

    @property
    def missing(self) -> int:
        return (self.expected - self.found).total()

    @property
    def surplus(self) -> int:
        return (self.found - self.expected).total()


def checksum(rows: Counter[str]) -> str:
    """The sum of the digests of all rows, duplicates included."""
    total = sum(
        int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big") * n for row, n in rows.items()
    )
    return f"{total % 2**64:016x}"


def compare_clicks(made: Sequence[Click], output: Iterable[Stored]) -> Comparison:
    """Every click put against every row of the output stream."""
    found = Counter(canonical(record.data) for record in output)
    return Comparison("clicks", Counter(expected_output(made)), found)


def compare_totals(made: Sequence[Click], output: Iterable[Stored]) -> Comparison:
    """Totals worked out from the producer's record against every row of the totals' stream."""
    found = Counter(canonical(record.data) for record in output)
    return Comparison("totals", Counter(expected_totals(made)), found)


def canonical(data: bytes) -> str:
    return json.dumps(json.loads(data), sort_keys=True)
