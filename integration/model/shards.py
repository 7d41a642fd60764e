"""A shard: its records, the portions they lie in, and how a reader walks from one to the next.

Inside a shard a position is a *place*: the microseconds since the shard was created, or one more than the
place before where that is later. A record is at its place, and an iterator is at the place that it reads
next, so places say both how records are ordered and how far an iterator is from the tip.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from integration.model import numbers
from integration.model.chance import fraction
from integration.model.clock import SECOND
from integration.model.laws import Laws
from integration.model.limits import CallLimit, ReadLimit, TokenBucket

_UNDECIDED = -1


class StoredRecord(NamedTuple):
    """A record as the shard keeps it. `arrival` is in microseconds since the epoch."""

    sequence_number: str
    arrival: int
    partition_key: str
    data: bytes

    @property
    def size(self) -> int:
        """What limits count: the data and the key, in bytes."""
        return len(self.data) + len(self.partition_key.encode())


class Place(NamedTuple):
    """Where an iterator or a subscription is."""

    at: int  # the next record is the first one at this place or behind it
    empty: int = _UNDECIDED  # empty pages before the next record; -1: not decided yet


class Reading(NamedTuple):
    """What one look at a shard gives."""

    first: int
    last: int  # first, last: the records, by their indexes; `last` is not one of them
    place: Place  # where the next reading starts
    millis_behind: int  # as the API has it
    is_end: bool = False  # the shard is closed, and nothing follows
    size: int = 0  # of the records, in bytes


@dataclass(eq=False)
class Shard:
    stream: str
    index: int  # the number in its id
    parents: tuple[str, ...]
    hash_range: tuple[int, int]
    created: int  # microseconds since the epoch, by the service's clock
    born: float  # the same by `Clock.elapsed`; listings go by it
    created_second: int  # what its sequence numbers say; later than that of its parents
    seed: object
    laws: Laws
    closed: int | None = None
    # closed, closed_elapsed: when it was closed, by both hands of the clock; None while it is open
    closed_elapsed: float | None = None
    is_expired: bool = False  # not listed any more, and gone for readers. It never comes back
    children: list[Shard] = field(default_factory=list)
    records: list[StoredRecord] = field(default_factory=list)
    first: int = 0  # index of the oldest record that has not expired
    was_read: bytearray = field(default_factory=bytearray)  # for each record, whether anybody was given it
    places: list[int] = field(default_factory=list)
    read_limit: ReadLimit = field(default_factory=ReadLimit)
    iterator_limit: CallLimit = field(default_factory=CallLimit)
    written_records: TokenBucket = field(default_factory=TokenBucket)
    written_bytes: TokenBucket = field(default_factory=TokenBucket)
    _portions: list[int] = field(default_factory=list)  # indexes of the first record of each
    _sizes: list[int] = field(default_factory=lambda: [0])  # of all records before an index
    _peaks: list[int] = field(default_factory=list)  # the latest arrival up to an index
    _last_place: int = 0

    @property
    def id(self) -> str:
        return f"shardId-{self.index:012d}"

    @property
    def is_open(self) -> bool:
        return self.closed is None

    @property
    def starting_number(self) -> str:
        """The number of its first place, which holds no record."""
        return self.number(0, self.created)

    @property
    def ending_number(self) -> str | None:
        """None while it is open; greater than that of any record in it."""
        return None if self.closed is None else self.number(numbers.LAST_PLACE, self.closed)

    @property
    def is_drained(self) -> bool:
        """Whether it is closed, and each record has been read or has expired."""
        return not self.is_open and 0 not in self.was_read[self.first :]

    def number(self, place: int, now: int) -> str:
        return numbers.encode(self.created_second, self.index, place, now // SECOND)

    def put(self, key: str, data: bytes, arrival: int, now: int) -> StoredRecord:
        """Takes a record, beyond all limits.

        `arrival`: what the record says of its arrival; `now`: by which its place is chosen.
        """
        place = max(self._last_place + 1, now - self.created)
        index = len(self.records)
        before = self.places[-1] if self.places else 0
        if (
            not index
            or place - before > self.laws.portion_gap * SECOND
            or fraction(self.seed, "portion", index) * self.laws.portion_records < 1
        ):
            self._portions.append(index)
        self._last_place = place
        record = StoredRecord(self.number(place, now), arrival, key, data)
        self.records.append(record)
        self.places.append(place)
        self.was_read.append(0)
        self._peaks.append(max(arrival, self._peaks[-1]) if index else arrival)
        self._sizes.append(self._sizes[-1] + record.size)
        return record

    def tip(self, now: int) -> int:
        """A place behind all records. Records that come later get a later one."""
        place = max(self._last_place + 1, (self.closed or now) - self.created)
        self._last_place = max(self._last_place, place - 1)
        return place

    def holds(self, place: int) -> bool:
        """Whether a record is at this place that has not expired."""
        index = bisect_left(self.places, place, self.first)
        return index < len(self.places) and self.places[index] == place

    def expire(self, before: int) -> None:
        """Records that arrived before an instant (microseconds) expire, the oldest first."""
        while self.first < len(self.records) and self.records[self.first].arrival < before:
            self.first += 1

    def place_of(self, instant: int) -> int:
        """The place of the first record that arrived at `instant` or later; the tip where none did.

        Arrival times may be out of order, so this is the first such record, not where they begin for good.
        """
        index = bisect_left(self._peaks, instant)
        if index < self.first:
            late = (i for i in range(self.first, len(self.records)) if self.records[i].arrival >= instant)
            index = next(late, len(self.records))
        return self.tip(instant) if index == len(self.records) else self.places[index]

    def read(self, place: Place, limit: int, most_bytes: int | None, now: int) -> Reading:
        """What a reader gets at `place`: records, or an empty step towards them, or the tip."""
        index = max(bisect_left(self.places, place.at), self.first)
        empty = self._run(index, place, now) if place.empty == _UNDECIDED else place.empty
        if empty > 0:
            goal = self.places[index] if index < len(self.places) else self.tip(now)
            at = place.at + max(0, goal - place.at) // (empty + 1)
            return Reading(index, index, Place(at, empty - 1), self._millis_behind(now, self.created + at))
        if index == len(self.records):
            return Reading(index, index, Place(self.tip(now)), 0, is_end=not self.is_open)
        last = self._end_of_page(index, limit, most_bytes)
        size = self._sizes[last] - self._sizes[index]
        following = Place(self.places[last - 1] + 1)
        newest = self.records[last - 1].arrival
        if last < len(self.records):
            return Reading(index, last, following, self._millis_behind(now, newest), size=size)
        if fraction(self.seed, "late", last, index) < self.laws.late_tip:
            # The page behind this one is the tip: no run of empty pages comes between.
            return Reading(
                index, last, following._replace(empty=0), self._millis_behind(now, newest), size=size
            )
        if self.is_open:
            return Reading(index, last, Place(self.tip(now)), 0, size=size)
        is_end = fraction(self.seed, "late end", last, index) >= self.laws.late_end
        return Reading(index, last, following._replace(empty=0), 0, is_end=is_end, size=size)

    def take(self, reading: Reading) -> list[StoredRecord]:
        """The records of a reading that is given to a reader."""
        self.was_read[reading.first : reading.last] = b"\x01" * (reading.last - reading.first)
        return self.records[reading.first : reading.last]

    def has_records(self, place: Place) -> bool:
        """Whether a record lies at `place` or behind it."""
        return max(bisect_left(self.places, place.at), self.first) < len(self.records)

    def _end_of_page(self, index: int, limit: int, most_bytes: int | None) -> int:
        last = min(len(self.records), index + min(limit, self.laws.page_records))
        if self.laws.empty_pages:
            portion = bisect_right(self._portions, index)
            if portion < len(self._portions):
                last = min(last, self._portions[portion])
        if most_bytes is not None:
            last = min(last, bisect_right(self._sizes, self._sizes[index] + most_bytes) - 1)
        return max(last, index + 1)

    def _run(self, index: int, place: Place, now: int) -> int:
        """How many empty pages a reader gets at `place` before the record `index`."""
        if not self.laws.empty_pages:
            return 0
        if index == len(self.records):
            # The way to the tip, where nobody has been for a while.
            gap = (self.closed or now) - self.created - place.at
            return self._drawn("tip", place.at) if gap > self.laws.portion_gap * SECOND else 0
        found = bisect_left(self._portions, index)
        is_first = found < len(self._portions) and self._portions[found] == index
        return self._drawn("run", index) if is_first or index == self.first else 0

    def _drawn(self, *what: object) -> int:
        chance, most = fraction(self.seed, *what), self.laws.empty_pages
        if self.laws.empty_runs_are_full:
            return most
        # Half of the runs are none, a quarter are mostly short, and a quarter have any length.
        if chance < 0.5:
            return 0
        return round(most ** (4 * chance - 2)) if chance < 0.75 else 1 + int(most * (4 * chance - 3))

    @staticmethod
    def _millis_behind(now: int, instant: int) -> int:
        return max(1, (now - instant) // 1000)
