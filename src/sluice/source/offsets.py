"""Positions in splits and the offsets Spark logs: the only state a restart needs (design: the offset log).

JSON, version 1::

    {"version": 1, "streams": {"clicks": {"shardId-000000000000": {"after": "4958…"}}}}

A position is one of ``{"after": seq}`` (with ``"sub"`` inside an aggregate), ``{"at": "TRIM_HORIZON"}``,
``{"at": "<ISO-8601>"}`` and ``{"closed": true}``. Beyond these, this version writes hints, which
readers that do not know them ignore: ``next`` (the number of the first record behind the position,
when it is known), ``arrival`` (when the record ``after`` arrived, ms), ``idle`` (when nothing lay
behind the position, ms), ``quiet`` (when nothing lay behind the start of the batch that ends here,
ms), ``pinned`` (when a time was made the start, ms), and beside ``streams`` the
time each stream was ``created`` (ms), which tells a stream from its successor of the same name.

Spark logs where batches end. The start of the first one it asks for again when that batch is run
again, and ``LATEST`` would be another moment then. So the end of the first batch also holds its
``start``, in the form of ``streams``; it goes before any other. ``consumers`` holds, by stream, the
ARNs of the consumers that the query registered itself: after a restart it may still deregister them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from sluice.errors import SluiceError
from sluice.source.splits import SplitId

__all__ = [
    "HORIZON",
    "After",
    "AtHorizon",
    "AtTime",
    "Closed",
    "Offsets",
    "Position",
    "SplitRange",
    "before",
    "iso_instant",
    "parse_instant",
]

VERSION = 1

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_DIGITS = re.compile(r"[0-9]+\Z")


def iso_instant(micros: int) -> str:
    """Microseconds since the epoch as ISO-8601 in UTC."""
    return (_EPOCH + micros * _MICROSECOND).isoformat().replace("+00:00", "Z")


def parse_instant(text: str) -> int:
    """ISO-8601 as microseconds since the epoch; a time without a zone is UTC. Raises ValueError."""
    value = datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text.strip()))
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return (value - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class After:
    """Behind a sequence number: every record with a greater one is still to come.

    Attributes:
        number: as the service writes it; usually, but not always, that of a record.
        sub: only sub-records of that record up to this one (counted from 0) are done.
        next: the number of the first record behind, when known.
        arrival: arrival of the record `number` (microseconds), when known.
        idle: an instant (microseconds) at which nothing lay behind this position.
        quiet: as the end of a batch: an instant at which nothing lay behind the batch's start.
    """

    number: str
    sub: int | None = None
    next: str | None = field(default=None, compare=False)
    arrival: int | None = field(default=None, compare=False)
    idle: int | None = field(default=None, compare=False)
    quiet: int | None = field(default=None, compare=False)

    @property
    def sequence(self) -> int:
        """The number to compare by: it has up to 56 digits, and as text they would mislead."""
        return int(self.number)

    @property
    def position_record(self) -> str:
        """The number of the record that shows where this is: the one before it, or the next one."""
        return self.number if self.next is None else self.next


@dataclass(frozen=True, slots=True)
class AtHorizon:
    """The oldest record there is."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that arrived at or after an instant (microseconds).

    Attributes:
        pinned: when that was made the start (microseconds).
        idle: a later instant (microseconds) at which nothing lay behind this position.
    """

    instant: int
    pinned: int | None = field(default=None, compare=False)
    idle: int | None = field(default=None, compare=False)

    @property
    def known_idle(self) -> int:
        """The last instant (microseconds) at which, as far as known, nothing lay behind this."""
        return self.instant if self.idle is None else max(self.instant, self.idle)


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed split, read to its end; ``quiet`` as in `After`."""

    quiet: int | None = field(default=None, compare=False)


Position = After | AtHorizon | AtTime | Closed

HORIZON = AtHorizon()


def before(number: str) -> After | AtHorizon:
    """The position right before the record `number`, which is the first one still to come."""
    if int(number) == 0:
        return HORIZON
    return After(str(int(number) - 1).zfill(len(number)), next=number)


@dataclass(frozen=True, slots=True)
class SplitRange:
    """Everything of one split behind `start`, up to and including `end`.

    Attributes:
        expected: about how many records that is, where the planner knows; only tunes page sizes.
        hash_range: the hash keys that belong to the shard, where it is still listed: what an
            aggregated record holds beyond them was put before a reshard and is another shard's.
    """

    split: SplitId
    start: Position
    end: After | Closed
    expected: int | None = field(default=None, compare=False)
    hash_range: tuple[int, int] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a batch starts or ends, for every split of every stream.

    Attributes:
        positions: a split that is missing has not been started: it begins at the horizon.
        created: stream to the time it was created (microseconds).
        streams: all streams, also those without any position yet.
        start: as the end of the first batch: where that batch starts.
        consumers: stream to the ARN of the consumer that this query registered itself.
    """

    positions: Mapping[SplitId, Position]
    created: Mapping[str, int] = field(default_factory=dict, compare=False)
    streams: frozenset[str] = frozenset()
    start: Mapping[SplitId, Position] | None = field(default=None, compare=False)
    consumers: Mapping[str, str] = field(default_factory=dict, compare=False)

    def position(self, split: SplitId) -> Position:
        return self.positions.get(split, HORIZON)

    @property
    def drained(self) -> frozenset[SplitId]:
        """Splits that were read to their end."""
        return frozenset(split for split, position in self.positions.items() if isinstance(position, Closed))

    def ranges_to(self, end: Offsets) -> list[SplitRange]:
        """What lies between these offsets and `end`, by split. Pure: the same pair, the same ranges."""
        if self == end:
            return []
        if end.start is not None:
            return replace(end, positions=end.start).ranges_to(replace(end, start=None))
        ranges = []
        for split, stop in sorted(end.positions.items(), key=lambda item: item[0]):
            recreated = self.created.get(split.stream) != end.created.get(split.stream)
            start = HORIZON if recreated and split.stream in self.created else self.position(split)
            if isinstance(stop, After | Closed) and start != stop:
                ranges.append(SplitRange(split, start, stop))
        return ranges

    def to_json(self) -> dict[str, Any]:
        streams: dict[str, dict[str, Any]] = {name: {} for name in sorted(self.streams)}
        streams |= _positions_to_json(self.positions)
        created = {name: at // 1000 for name, at in sorted(self.created.items())}
        value: dict[str, Any] = {"version": VERSION, "streams": streams, "created": created}
        if self.consumers:
            value["consumers"] = dict(sorted(self.consumers.items()))
        return value if self.start is None else value | {"start": _positions_to_json(self.start)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """Raises SluiceError for what no version of this library has written."""
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
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SluiceError(f"these are not offsets of this source: {value!r} ({error!r})") from error
        return cls(positions, created, frozenset(streams), start, consumers)

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
            return value | _hints(arrival=position.arrival, idle=position.idle, quiet=position.quiet)
        case AtTime():
            return {"at": iso_instant(position.instant)} | _hints(pinned=position.pinned, idle=position.idle)
        case AtHorizon():
            return {"at": "TRIM_HORIZON"}
        case Closed():
            return {"closed": True} | _hints(quiet=position.quiet)


def _hints(**instants: int | None) -> dict[str, Any]:
    """Those that are known, in milliseconds."""
    return {name: instant // 1000 for name, instant in instants.items() if instant is not None}


def _position_from_json(value: Mapping[str, Any]) -> Position:
    if value.get("closed") is True:
        return Closed(quiet=_micros(value.get("quiet")))
    if "after" in value:
        sub = value.get("sub")
        return After(
            _sequence(value["after"]),
            None if sub is None else int(sub),
            next=None if value.get("next") is None else _sequence(value["next"]),
            arrival=_micros(value.get("arrival")),
            idle=_micros(value.get("idle")),
            quiet=_micros(value.get("quiet")),
        )
    if value["at"] == "TRIM_HORIZON":
        return HORIZON
    return AtTime(
        parse_instant(value["at"]), pinned=_micros(value.get("pinned")), idle=_micros(value.get("idle"))
    )


def _sequence(text: object) -> str:
    if not isinstance(text, str) or not _DIGITS.match(text):
        raise ValueError(f"not a sequence number: {text!r}")
    return text


def _micros(millis: Any) -> int | None:
    return None if millis is None else int(millis) * 1000
