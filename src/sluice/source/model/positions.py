"""Positions in a split: where reading resumes, and how sequence numbers compare.

A sequence number is text. If it has only digits, it compares as a number of any length, otherwise by its
bytes. Within a split, a log uses only one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "HORIZON",
    "LONGEST_TEXT",
    "After",
    "AtHorizon",
    "AtTime",
    "Closed",
    "Position",
    "before",
    "checked_number",
    "expected_record",
    "is_by_time",
    "sequence_of",
]


LONGEST_TEXT: Final = 128
"""Maximum bytes of a position that is not a number."""


def sequence_of(position: str) -> int:
    """Returns a number to compare the position by.

    Raises:
        ValueError: the position is neither digits nor text of 1 to `LONGEST_TEXT` bytes.
    """
    if position.isdecimal():
        return int(position)
    encoded = position.encode()
    if not 0 < len(encoded) <= LONGEST_TEXT:
        raise ValueError(f"a position has 1 to {LONGEST_TEXT} bytes: {position!r}")
    return int.from_bytes(encoded.ljust(LONGEST_TEXT, b"\0"), "big")


def checked_number(text: object) -> str:
    """Returns a logged position.

    Raises:
        ValueError: it is not a position.
    """
    if not isinstance(text, str):
        raise ValueError(f"not a sequence number: {text!r}")  # noqa: TRY004 - as any other wrong value
    sequence_of(text)
    return text


@dataclass(frozen=True, slots=True)
class After:
    """After a sequence number: all records with greater numbers are unread.

    Attributes:
        number: as the service writes it. It need not belong to a record.
        sub: the position is inside the aggregated record `number`: its user records up to this one
            (counted from 0) are read.
        next: number of the first record after the position, if known.
        arrival: when the record `number` arrived (microseconds), if known.
        caught_up_at: an instant (microseconds) at which no record followed this position.
        start_caught_up_at: in the end of a batch, an instant (microseconds) at which no record followed
            the start of the batch.
    """

    number: str
    sub: int | None = None
    next: str | None = field(default=None, compare=False)
    arrival: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)
    start_caught_up_at: int | None = field(default=None, compare=False)

    @property
    def last_caught_up_at(self) -> int | None:
        """The last instant (microseconds) at which no unread record had expired; None: unknown."""
        return _latest(self.arrival, self.caught_up_at)

    @property
    def sequence(self) -> int:
        """The sequence number, to compare by: texts of different lengths do not compare."""
        return sequence_of(self.number)

    @property
    def read_up_to(self) -> int:
        """The highest sequence number that need not be read again.

        An aggregated record is read again for its remaining user records.
        """
        return self.sequence - (self.sub is not None)

    @property
    def position_record(self) -> str:
        """The number of the record that an iterator for this position begins with.

        If that record has expired, records after the position may have expired, too.
        """
        return self.number if self.next is None else self.next


@dataclass(frozen=True, slots=True)
class AtHorizon:
    """The oldest existing record.

    Attributes:
        next: number of the oldest record, if known.
        pinned: when this became the start of the query (microseconds). None: the split is younger than
            the query, which reads all its records.
        caught_up_at: an instant (microseconds) at which the split held no record, and none had expired.
    """

    next: str | None = field(default=None, compare=False)
    pinned: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)

    @property
    def last_caught_up_at(self) -> int | None:
        """The last instant (microseconds) at which no unread record had expired; None: unknown."""
        return _latest(self.pinned, self.caught_up_at)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that arrived at or after an instant (microseconds).

    Attributes:
        pinned: when this instant became the start of the query (microseconds).
        caught_up_at: a later instant (microseconds) at which no record followed this position.
        number: in a log that has positions, the number of the first record, or of the next record to
            come. It replaces the time.
    """

    instant: int
    pinned: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)
    number: str | None = None

    @property
    def last_caught_up_at(self) -> int:
        """The last instant (microseconds) at which no record is known to have followed this position."""
        return max(self.instant, self.caught_up_at or 0)


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a closed split.

    Attributes:
        start_caught_up_at: as in `After`.
        unlisted_at: when the split was first missing from a listing (microseconds). A listing may omit
            it by mistake; a forgotten split would be read again when it is next listed.
    """

    start_caught_up_at: int | None = field(default=None, compare=False)
    unlisted_at: int | None = field(default=None, compare=False)

    @property
    def last_caught_up_at(self) -> None:
        """Nothing is unread."""
        return


Position = After | AtHorizon | AtTime | Closed

HORIZON = AtHorizon()


def _latest(*instants: int | None) -> int | None:
    return max((instant for instant in instants if instant is not None), default=None)


def expected_record(position: Position) -> str | None:
    """Returns the number of the record that an iterator for the position begins with; None: unknown.

    If the record has expired, the iterator begins later.
    """
    match position:
        case After():
            return position.position_record
        case AtHorizon():
            return position.next
        case AtTime() | Closed():
            return None


def is_by_time(position: Position) -> bool:
    """Whether only arrival times tell which records follow the position."""
    return isinstance(position, AtTime) and position.number is None


def before(number: str) -> After | AtHorizon:
    """Returns the position right before the record `number`."""
    if sequence_of(number) == 0:
        return HORIZON
    if not number.isdecimal():
        return After("0", next=number)  # less than any text
    return After(str(int(number) - 1).zfill(len(number)), next=number)
