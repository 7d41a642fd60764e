"""Positions in splits, and the offsets that Spark logs: the only state that a restart needs.

JSON, version 1::

    {"version": 1, "streams": {"clicks": {"shardId-000000000000": {"after": "4958…"}}}}

A position is one of ``{"after": "<sequence number>"}`` (with ``"sub"`` inside an aggregate),
``{"at": "TRIM_HORIZON"}``, ``{"at": "<ISO-8601>"}`` and ``{"closed": true}``. This version adds hints, which
readers ignore that do not know them. Instants are milliseconds since the epoch:

- ``next``: sequence number of the first record after the position, where it is known;
- ``arrival``: when the record ``after`` arrived;
- ``idle``: an instant at which no record followed the position;
- ``quiet``: in the end of a batch, an instant at which no record followed the start of the batch;
- ``pinned``: when a time, or the oldest record, became the start of the query;
- ``unlisted``: of a drained split, when a listing was the first to leave it out.

Beside ``streams`` there are:

- ``created``: when each stream was created, which tells a stream from a later one of the same name;
- ``expiry``: for how long each stream kept its records, ``retention`` (milliseconds), and an instant before
  which all records had expired, ``horizon``;
- ``listed``: when the splits were listed. A split without a position did not exist then;
- ``starting``: by stream, the starting position that the user asked for, as text;
- ``start``: in the end of the first batch, where that batch starts, in the form of ``streams``. Spark does
  not log the start of the first batch: it asks for it again when it runs the batch again, and ``LATEST``
  would be a later time then;
- ``consumers``: by stream, the ARN of the consumer that this query registered. After a restart the query may
  still deregister it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.errors import SluiceError
from sluice.instants import iso_instant, parse_instant
from sluice.source.sequence import sequence_of
from sluice.source.splits import SplitId

__all__ = [
    "HORIZON",
    "After",
    "AtHorizon",
    "AtTime",
    "Closed",
    "Expiry",
    "Offsets",
    "Position",
    "SplitRange",
    "before",
    "expected_record",
]

VERSION = 1


@dataclass(frozen=True, slots=True)
class After:
    """Behind a sequence number: all records with greater numbers are unread.

    Attributes:
        number: as the service writes it. It usually belongs to a record, but need not.
        sub: the position is inside the aggregated record `number`: its user records up to this one (counted
            from 0) are read.
        next: number of the first record after the position, where it is known.
        arrival: when the record `number` arrived (microseconds), where it is known.
        caught_up_at: an instant (microseconds) at which no record followed this position.
        start_caught_up_at: in the end of a batch, an instant (microseconds) at which no record followed the
            start of the batch.
    """

    number: str
    sub: int | None = None
    next: str | None = field(default=None, compare=False)
    arrival: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)
    start_caught_up_at: int | None = field(default=None, compare=False)

    @property
    def sequence(self) -> int:
        """The sequence number, to compare by: numbers differ in length, so their texts do not compare."""
        return sequence_of(self.number)

    @property
    def position_record(self) -> str:
        """The number of the record that an iterator for this position begins with.

        If that record is missing, it has expired, and records after the position may have expired, too.
        """
        return self.number if self.next is None else self.next


@dataclass(frozen=True, slots=True)
class AtHorizon:
    """The oldest record there is.

    Attributes:
        next: number of the oldest record, where it is known.
        pinned: when this became the start of the query (microseconds). None: the split is younger than the
            query, and all its records are to be read.
        caught_up_at: an instant (microseconds) at which the split held no record, and none had expired.
    """

    next: str | None = field(default=None, compare=False)
    pinned: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)

    @property
    def last_caught_up_at(self) -> int | None:
        """The last instant (microseconds) at which nothing that is to be read had expired; None: unknown."""
        return max((at for at in (self.pinned, self.caught_up_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that arrived at or after an instant (microseconds).

    Attributes:
        pinned: when this instant became the start of the query (microseconds).
        caught_up_at: a later instant (microseconds) at which no record followed this position.
    """

    instant: int
    pinned: int | None = field(default=None, compare=False)
    caught_up_at: int | None = field(default=None, compare=False)

    @property
    def last_caught_up_at(self) -> int:
        """The last instant (microseconds) at which no record is known to have followed this position."""
        return self.instant if self.caught_up_at is None else max(self.instant, self.caught_up_at)


@dataclass(frozen=True, slots=True)
class Closed:
    """The end of a closed split.

    Attributes:
        start_caught_up_at: as in `After`.
        unlisted_at: when a listing was the first to leave out the split (microseconds). It may do so by
            mistake, and a split that was forgotten would be read again when it is listed the next time.
    """

    start_caught_up_at: int | None = field(default=None, compare=False)
    unlisted_at: int | None = field(default=None, compare=False)


Position = After | AtHorizon | AtTime | Closed

HORIZON = AtHorizon()


def expected_record(position: Position) -> str | None:
    """The number of the record that an iterator for the position begins with, unless the record has expired.

    Returns:
        None where it is not known.
    """
    match position:
        case After():
            return position.position_record
        case AtHorizon():
            return position.next
        case AtTime() | Closed():
            return None


def before(number: str) -> After | AtHorizon:
    """The position right before the record `number`."""
    if sequence_of(number) == 0:
        return HORIZON
    if not number.isdecimal():
        return After("0", next=number)  # it compares as less than any text
    return After(str(int(number) - 1).zfill(len(number)), next=number)


@dataclass(frozen=True, slots=True)
class Expiry:
    """Which records of a stream have expired.

    Attributes:
        retention: for how long the stream keeps records (microseconds).
        horizon: no record that arrived before this instant is left (microseconds). Retention that is raised
            brings no record back, so it never becomes earlier.
    """

    retention: int
    horizon: int

    def at(self, now: int, retention: int) -> Expiry:
        """The same at a later time, when the retention is `retention` (both microseconds).

        It may have been raised at any moment in between, and the last of them is assumed.
        """
        return Expiry(retention, max(self.horizon, now - min(self.retention, retention)))

    def to_json(self) -> dict[str, int]:
        return {"retention": self.retention // 1000, "horizon": self.horizon // 1000}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Expiry:
        return cls(int(value["retention"]) * 1000, int(value["horizon"]) * 1000)


@dataclass(frozen=True, slots=True)
class SplitRange:
    """All records of one split after `start`, up to and including `end`.

    Attributes:
        expected: about how many records these are, where the planner knows it. Tunes page sizes alone.
        hash_range: first and last hash key of the shard, where the shard is still listed. An aggregated
            record may hold user records with other hash keys: they belong to another shard since a reshard.
        expiry: which records had expired when `start` was logged.
        parents: those parents of the split that the same batch reads. Their records come first.
    """

    split: SplitId
    start: Position
    end: After | Closed
    expected: int | None = field(default=None, compare=False)
    hash_range: tuple[int, int] | None = field(default=None, compare=False)
    expiry: Expiry | None = field(default=None, compare=False)
    parents: tuple[SplitId, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a batch starts or ends in every split of every stream.

    Attributes:
        positions: a split that is missing has not been read: it begins at the horizon.
        created: by stream, when it was created (microseconds).
        expiry: by stream, which of its records have expired.
        listed: when the splits were listed (microseconds); None where that is not known.
        starting: by stream, the starting position that the user asked for.
        streams: the names of all streams, also of those without a position.
        start: in the end of the first batch, where that batch starts.
        consumers: by stream, the ARN of the consumer that this query registered.
    """

    positions: Mapping[SplitId, Position]
    created: Mapping[str, int] = field(default_factory=dict, compare=False)
    streams: frozenset[str] = frozenset()
    start: Mapping[SplitId, Position] | None = field(default=None, compare=False)
    consumers: Mapping[str, str] = field(default_factory=dict, compare=False)
    expiry: Mapping[str, Expiry] = field(default_factory=dict, compare=False)
    listed: int | None = field(default=None, compare=False)
    starting: Mapping[str, str] = field(default_factory=dict, compare=False)

    def position(self, split: SplitId) -> Position:
        """Where to read a split from. One that was not known had no record when splits were listed."""
        known = self.positions.get(split)
        return AtHorizon(caught_up_at=self.listed) if known is None else known

    @property
    def drained(self) -> frozenset[SplitId]:
        """The splits that were read to their end."""
        return frozenset(split for split, position in self.positions.items() if isinstance(position, Closed))

    def ranges_to(self, end: Offsets) -> list[SplitRange]:
        """The ranges between these offsets and `end`, by split. The same pair gives the same ranges."""
        if self == end:
            return []
        if end.start is not None:
            return replace(end, positions=end.start).ranges_to(replace(end, start=None))
        ranges = []
        for split, stop in sorted(end.positions.items(), key=lambda item: item[0]):
            created = end.created.get(split.stream)
            is_recreated = split.stream in self.created and self.created[split.stream] != created
            start = AtHorizon(caught_up_at=created) if is_recreated else self.position(split)
            if isinstance(stop, After | Closed) and start != stop:
                ranges.append(SplitRange(split, start, stop, expiry=self.expiry.get(split.stream)))
        return ranges

    def to_json(self) -> dict[str, Any]:
        streams: dict[str, dict[str, Any]] = {name: {} for name in sorted(self.streams)}
        streams |= _positions_to_json(self.positions)
        created = {name: at // 1000 for name, at in sorted(self.created.items())}
        value: dict[str, Any] = {"version": VERSION, "streams": streams, "created": created}
        if self.expiry:
            value["expiry"] = {name: expiry.to_json() for name, expiry in sorted(self.expiry.items())}
        if self.listed is not None:
            value["listed"] = self.listed // 1000
        if self.starting:
            value["starting"] = dict(sorted(self.starting.items()))
        if self.consumers:
            value["consumers"] = dict(sorted(self.consumers.items()))
        return value if self.start is None else value | {"start": _positions_to_json(self.start)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """Reads offsets that `to_json` has written.

        Raises:
            SluiceError: `value` is something else, or of a version that this release does not read.
        """
        try:
            if value["version"] != VERSION:
                raise SluiceError(
                    f"the checkpoint's offsets have version {value['version']!r}; this release reads version "
                    f"{VERSION}: use the release that wrote them, or a new checkpoint"
                )
            streams: Mapping[str, Any] = value["streams"]
            positions = _positions_from_json(streams)
            start = _positions_from_json(value["start"]) if "start" in value else None
            created = {name: int(at) * 1000 for name, at in value.get("created", {}).items()}
            consumers = {name: str(arn) for name, arn in value.get("consumers", {}).items()}
            expiry = {name: Expiry.from_json(item) for name, item in value.get("expiry", {}).items()}
            listed = _micros(value.get("listed"))
            starting = {name: str(text) for name, text in value.get("starting", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SluiceError(f"these are not offsets of this source: {value!r} ({error!r})") from error
        names = frozenset(streams)
        return cls(positions, created, names, start, consumers, expiry, listed, starting)

    def with_positions(self, positions: Mapping[SplitId, Position]) -> Offsets:
        return replace(self, positions=positions, start=None)


def _positions_to_json(positions: Mapping[SplitId, Position]) -> dict[str, dict[str, Any]]:
    streams: dict[str, dict[str, Any]] = {}
    for split, position in sorted(positions.items(), key=lambda item: item[0]):
        streams.setdefault(split.stream, {})[split.shard] = _position_to_json(position)
    return streams


def _positions_from_json(streams: Mapping[str, Any]) -> dict[SplitId, Position]:
    return {
        SplitId(stream, shard): _position_from_json(position)
        for stream, shards in streams.items()
        for shard, position in shards.items()
    }


def _position_to_json(position: Position) -> dict[str, Any]:
    match position:
        case After():
            value: dict[str, Any] = {"after": position.number}
            if position.sub is not None:
                value["sub"] = position.sub
            if position.next is not None:
                value["next"] = position.next
            return value | _hints(
                arrival=position.arrival, idle=position.caught_up_at, quiet=position.start_caught_up_at
            )
        case AtTime():
            return {"at": iso_instant(position.instant)} | _hints(
                pinned=position.pinned, idle=position.caught_up_at
            )
        case AtHorizon():
            value = {"at": "TRIM_HORIZON"} | ({} if position.next is None else {"next": position.next})
            return value | _hints(pinned=position.pinned, idle=position.caught_up_at)
        case Closed():
            return {"closed": True} | _hints(quiet=position.start_caught_up_at, unlisted=position.unlisted_at)


def _hints(**instants: int | None) -> dict[str, Any]:
    """The hints that are known, in milliseconds."""
    return {name: instant // 1000 for name, instant in instants.items() if instant is not None}


def _position_from_json(value: Mapping[str, Any]) -> Position:
    if value.get("closed") is True:
        return Closed(
            start_caught_up_at=_micros(value.get("quiet")), unlisted_at=_micros(value.get("unlisted"))
        )
    if "after" in value:
        sub = value.get("sub")
        return After(
            _sequence(value["after"]),
            None if sub is None else int(sub),
            next=_next(value),
            arrival=_micros(value.get("arrival")),
            caught_up_at=_micros(value.get("idle")),
            start_caught_up_at=_micros(value.get("quiet")),
        )
    pinned, caught_up_at = _micros(value.get("pinned")), _micros(value.get("idle"))
    if value["at"] == "TRIM_HORIZON":
        return AtHorizon(_next(value), pinned, caught_up_at)
    return AtTime(parse_instant(value["at"]), pinned, caught_up_at)


def _next(value: Mapping[str, Any]) -> str | None:
    return None if value.get("next") is None else _sequence(value["next"])


def _sequence(text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"not a sequence number: {text!r}")  # noqa: TRY004 - as any other wrong value
    sequence_of(text)
    return text


def _micros(millis: Any) -> int | None:
    return None if millis is None else int(millis) * 1000
