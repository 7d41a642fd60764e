"""Decides at which points in time to look for the newest record of a split.

Kinesis has no call that names it. What can be asked is the first record at or after an instant, and the shard
answers five questions a second. So the answers so far choose the next question.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.instants import MICROS_PER_SECOND

__all__ = ["TipSearch", "shortest_span"]

_RECORD_RATE = 1_000
"""Records that Kinesis lets producers write to a shard each second."""
_BYTE_RATE = 2**20
"""Bytes that Kinesis lets producers write to a shard each second.

https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html
"""

_PART = 0.5
"""The share of the pause's logarithm at which the search asks next: it halves what is left."""
_PART_OF_LARGE = 0.25
"""The same where records are large: the instant is nearer to `TipSearch.high`."""


def shortest_span(records: int, record_size: float) -> int:
    """The shortest time in which a shard takes some records (microseconds).

    Args:
        records: how many.
        record_size: their mean size (bytes).
    """
    rate = min(_RECORD_RATE, _BYTE_RATE / max(record_size, 1.0))
    return int(records / rate * MICROS_PER_SECOND)


@dataclass
class TipSearch:
    """The newest record of a split arrived at `low` or later, and before `high`.

    Attributes:
        now: when the search began (microseconds, as all times here).
        low: when the newest record arrived that is known.
        high: no record arrived then or later.
        span: the arrival time that one page covers, about.
        rest: a span of this length or less is read and not searched any more; at least `span`.
        is_large: whether records are large.
    """

    now: int
    low: int
    high: int
    span: int
    rest: int
    is_large: bool = False

    def next_instant(self) -> int | None:
        """Where to ask next, after `low` and before `high`; None: the rest is small enough to read on.

        Producers may have paused for seconds or for days, and nothing says which. So the search halves the
        logarithm of the pause: one of a minute is found about as fast in an hour as in a year. Where records
        are large it asks nearer to `high`: an answer without a record costs next to nothing, and one with a
        record costs the reading of a large record.
        """
        if self.high - self.low <= self.rest:
            return None
        latest = self.high - self.span  # from later on, a page would hold no more than the rest
        if latest - self.low <= self.rest:
            return latest  # either answer is the last one
        shortest = max(self.now - self.high, min(self.span, MICROS_PER_SECOND))
        longest = self.now - self.low
        part = _PART_OF_LARGE if self.is_large else _PART
        instant = self.now - int(shortest * (longest / shortest) ** part)
        return max(self.low + 1, min(instant, latest))

    def is_in_reach(self, instant: int) -> bool:
        """Whether a page from `instant` on is likely to hold the newest record."""
        return self.high - instant <= self.span
