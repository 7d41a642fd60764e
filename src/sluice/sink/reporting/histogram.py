"""A histogram of durations that can be merged: tasks record, the driver adds up and reads quantiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

__all__ = ["RELATIVE_ERROR", "Histogram"]

# Buckets are those of OpenTelemetry's exponential histogram: bucket n holds values from BASE^n, which is not
# in it, to BASE^(n+1), which is. https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram
_SCALE: Final = 4
_BUCKETS_TO_DOUBLE: Final = 2**_SCALE
_BASE: Final = 2 ** (1 / _BUCKETS_TO_DOUBLE)

RELATIVE_ERROR: Final = (_BASE - 1) / (_BASE + 1)
"""By how much a quantile is off at most: 2.2 % of its true value."""

# Seconds. What is shorter or longer is in the first or the last bucket: there are at most 640.
_SHORTEST: Final = 1e-6
_LONGEST: Final = 1e6


@dataclass(slots=True)
class Histogram:
    """Durations in seconds. Merging in any order gives what one histogram of all durations has.

    Attributes:
        count: durations recorded.
        max: the longest; 0 without any.
        buckets: how many are in each bucket, by its number.
    """

    count: int = 0
    max: float = 0.0
    buckets: dict[int, int] = field(default_factory=dict)

    def record(self, seconds: float) -> None:
        """Adds a duration; a negative one counts as 0."""
        seconds = max(0.0, seconds)
        # Rounding may put a value that is a power of the base into the neighbouring bucket: that is within
        # the error of both.
        bucket = math.ceil(math.log2(min(max(seconds, _SHORTEST), _LONGEST)) * _BUCKETS_TO_DOUBLE) - 1
        self.count += 1
        self.max = max(self.max, seconds)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Adds all durations of `other`, which stays as it is."""
        self.count += other.count
        self.max = max(self.max, other.max)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def percentile(self, percent: int) -> float | None:
        """The shortest of the durations that at least so many percent of them do not exceed.

        Args:
            percent: from 1 to 100.

        Returns:
            Seconds; None without any durations. Off by at most `RELATIVE_ERROR` for durations from a
            microsecond to 11 days; exact where it is the longest.
        """
        rank = -(-percent * self.count // 100)
        if rank == self.count:
            return self.max if self.count else None
        for bucket, count in sorted(self.buckets.items()):
            rank -= count
            if rank <= 0:
                low, high = _BASE**bucket, _BASE ** (bucket + 1)
                return min(self.max, 2 * low * high / (low + high))  # equally far from both, relatively
        raise AssertionError("the buckets hold fewer durations than there are")
