"""Positions in splits, and the offsets that Spark logs: the only state that a restart needs.

JSON, version 1::

    {"version": 1, "streams": {"clicks": {"shardId-000000000000": {"after": "4958…"}}}}

More than 256 splits are written as version 2: tables (see `sluice.source.model.position_json`) in a
fifth of the space. Sluice reads both versions and rejects others.

A position is one of ``{"after": "<sequence number>"}`` (with ``"sub"`` inside an aggregate), ``{"at":
"TRIM_HORIZON"}``, ``{"at": "<ISO-8601>"}`` and ``{"closed": true}``. It may have hints, which older
readers ignore. Instants are milliseconds since the epoch:

- ``next``: sequence number of the first record after the position;
- ``number``: with a time, the number to read from, if the log has positions. Older readers use the time;
- ``arrival``: when the record ``after`` arrived;
- ``idle``: an instant at which no record followed the position;
- ``quiet``: in the end of a batch, an instant at which no record followed the start of the batch;
- ``pinned``: when a time, or the oldest record, became the start of the query;
- ``unlisted``: when a drained split was first missing from a listing.

In addition to ``streams``:

- ``created``: when each stream was created, to detect a new stream of the same name;
- ``expiry``: for each stream, its ``retention`` (milliseconds), and an instant before which all records
  had expired, ``horizon``;
- ``listed``: when the splits were listed. A split without a position did not exist then;
- ``starting``: by stream, the starting position from the options, as text;
- ``start``: the start of the batch that ends here, in the form of ``streams``, if it differs from the
  end of the previous batch because splits were lost, found or added. The first batch always has it:
  Spark asks for its start again when it repeats the batch, and ``LATEST`` would then be later;
- ``consumers``: by stream, the ARN of the consumer that this query registered, and may deregister after
  a restart;
- ``scan``: by stream, how far the table behind it has been read, see `Scan`. Streams are read after all
  scans.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sluice.errors import SluiceError
from sluice.source.model.columns import COMPACT_FROM
from sluice.source.model.position_json import (
    columns_from_json,
    columns_to_json,
    positions_from_json,
    positions_to_json,
)
from sluice.source.model.positions import (
    HORIZON,
    After,
    AtHorizon,
    AtTime,
    Closed,
    Position,
    before,
    expected_record,
    is_by_time,
)
from sluice.source.model.splits import SplitId

__all__ = [
    "COMPACT_FROM",
    "HORIZON",
    "VERSIONS",
    "After",
    "AtHorizon",
    "AtTime",
    "Closed",
    "Expiry",
    "Offsets",
    "Position",
    "Scan",
    "SplitRange",
    "before",
    "expected_record",
    "is_by_time",
]


@dataclass(frozen=True, slots=True)
class Expiry:
    """Which records of a stream have expired, as a time.

    Attributes:
        retention: for how long the stream keeps records (microseconds).
        horizon: all records that arrived before this instant have expired (microseconds). A longer
            retention restores no record, so the horizon never becomes earlier.
    """

    retention: int
    horizon: int

    def at(self, now: int, retention: int) -> Expiry:
        """Returns the expiry at a later time, when the retention is `retention` (both microseconds).

        If the retention was raised in between, the latest possible moment is assumed.
        """
        return Expiry(retention, max(self.horizon, now - min(self.retention, retention)))

    def to_json(self) -> dict[str, int]:
        return {"retention": self.retention // 1000, "horizon": self.horizon // 1000}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Expiry:
        return cls(int(value["retention"]) * 1000, int(value["horizon"]) * 1000)


@dataclass(frozen=True, slots=True)
class Scan:
    """How far the table of a stream has been read. The stream's positions are older than the scan.

    A batch reads whole segments. Only its end records which, because its start may come from another
    planner.

    Attributes:
        segments: into how many the table is divided.
        begin, end: the batch that ends here has read the segments from `begin` to `end`, without `end`.
        since: when the positions were recorded (microseconds).
    """

    segments: int
    begin: int
    end: int
    since: int

    def to_json(self) -> dict[str, int]:
        return {
            "segments": self.segments,
            "from": self.begin,
            "next": self.end,
            "since": self.since // 1000,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Scan:
        return cls(int(value["segments"]), int(value["from"]), int(value["next"]), int(value["since"]) * 1000)


@dataclass(frozen=True, slots=True)
class SplitRange:
    """All records of one split after `start`, up to and including `end`.

    Attributes:
        expected: approximate number of records, if known. It only tunes page sizes.
        hash_range: first and last hash key of the shard, if it is still listed. User records of an
            aggregate with other hash keys belong to another shard since a reshard.
        expiry: which records had expired when the range was planned, from the offsets that have `start`.
        created: when the stream was created (microseconds), if the offsets record it.
        parents: parents of the split that the same batch reads. Their records come first.
    """

    split: SplitId
    start: Position
    end: After | Closed
    expected: int | None = field(default=None, compare=False)
    hash_range: tuple[int, int] | None = field(default=None, compare=False)
    expiry: Expiry | None = field(default=None, compare=False)
    created: int | None = field(default=None, compare=False)
    parents: tuple[SplitId, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where a batch starts or ends in every split of every stream.

    Attributes:
        positions: a missing split is unread: it begins at the horizon.
        created: by stream, when it was created (microseconds).
        expiry: by stream, which of its records have expired.
        listed: when the splits were listed (microseconds); None: not known.
        starting: by stream, the starting position from the options.
        streams: the names of all streams, including streams without a position.
        start: the start of the batch that ends here, if it differs from the end of the previous batch.
        consumers: by stream, the ARN of the consumer that this query registered.
        scan: by stream, how far the table behind it has been read; empty if no table is read.
    """

    positions: Mapping[SplitId, Position]
    created: Mapping[str, int] = field(default_factory=dict, compare=False)
    streams: frozenset[str] = frozenset()
    start: Mapping[SplitId, Position] | None = field(default=None, compare=False)
    consumers: Mapping[str, str] = field(default_factory=dict, compare=False)
    expiry: Mapping[str, Expiry] = field(default_factory=dict, compare=False)
    listed: int | None = field(default=None, compare=False)
    starting: Mapping[str, str] = field(default_factory=dict, compare=False)
    scan: Mapping[str, Scan] = field(default_factory=dict)

    def position(self, split: SplitId) -> Position:
        """Returns where to read a split from. A split that was not listed had no record at that time."""
        known = self.positions.get(split)
        return AtHorizon(caught_up_at=self.listed) if known is None else known

    @property
    def drained(self) -> frozenset[SplitId]:
        """The splits that were read to their end."""
        return frozenset(split for split, position in self.positions.items() if isinstance(position, Closed))

    def ranges_to(self, end: Offsets) -> list[SplitRange]:
        """Returns the ranges between these offsets and `end`, by split. The same pair gives the same
        ranges.
        """
        if self == end and self.created == end.created:
            return []
        if end.start is not None:
            return replace(end, positions=end.start).ranges_to(replace(end, start=None))
        ranges = []
        for split, stop in sorted(end.positions.items(), key=lambda item: item[0]):
            created = end.created.get(split.stream)
            is_recreated = split.stream in self.created and self.created[split.stream] != created
            start = AtHorizon(caught_up_at=created) if is_recreated else self.position(split)
            if isinstance(stop, After | Closed) and start != stop:
                expiry = self.expiry.get(split.stream)
                ranges.append(SplitRange(split, start, stop, expiry=expiry, created=created))
        return ranges

    def to_json(self, version: int | None = None) -> dict[str, Any]:
        """Returns the value that Spark logs.

        Args:
            version: 1 or 2; None: 2 for more than 256 splits.
        """
        if version is None:
            version = 1 if len(self.positions) < COMPACT_FROM else 2
        write, _ = _FORMS[version]
        streams: dict[str, dict[str, Any]] = {name: {} for name in sorted(self.streams)}
        streams |= write(self.positions)
        created = {name: at // 1000 for name, at in sorted(self.created.items())}
        value: dict[str, Any] = {"version": version, "streams": streams, "created": created}
        if self.expiry:
            value["expiry"] = {name: expiry.to_json() for name, expiry in sorted(self.expiry.items())}
        if self.listed is not None:
            value["listed"] = self.listed // 1000
        if self.starting:
            value["starting"] = dict(sorted(self.starting.items()))
        if self.consumers:
            value["consumers"] = dict(sorted(self.consumers.items()))
        if self.scan:
            value["scan"] = {name: scan.to_json() for name, scan in sorted(self.scan.items())}
        return value if self.start is None else value | {"start": write(self.start)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """Reads offsets that `to_json` has written, in any version.

        Raises:
            SluiceError: `value` is something else, or has an unknown version.
        """
        try:
            if value["version"] not in _FORMS:
                raise SluiceError(
                    f"the checkpoint's offsets have version {value['version']!r}; this release reads "
                    f"{' and '.join(map(str, _FORMS))}: use the release that wrote them, or a new checkpoint"
                )
            _, read = _FORMS[value["version"]]
            streams: Mapping[str, Any] = value["streams"]
            positions = read(streams)
            start = read(value["start"]) if "start" in value else None
            created = {name: int(at) * 1000 for name, at in value.get("created", {}).items()}
            consumers = {name: str(arn) for name, arn in value.get("consumers", {}).items()}
            expiry = {name: Expiry.from_json(item) for name, item in value.get("expiry", {}).items()}
            listed = None if value.get("listed") is None else int(value["listed"]) * 1000
            starting = {name: str(text) for name, text in value.get("starting", {}).items()}
            scan = {name: Scan.from_json(item) for name, item in value.get("scan", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            shown = reprlib.repr(value)  # it may have 10,000 splits
            raise SluiceError(f"these are not offsets of this source: {shown} ({error!r})") from None
        names = frozenset(streams)
        return cls(positions, created, names, start, consumers, expiry, listed, starting, scan)

    def with_splits(self, splits: Iterable[SplitId]) -> Offsets:
        """Adds the missing positions of these splits; returns the same object if none is missing."""
        found = {split: self.position(split) for split in splits if split not in self.positions}
        return self.with_positions({**self.positions, **found}) if found else self

    def with_positions(self, positions: Mapping[SplitId, Position]) -> Offsets:
        return replace(self, positions=positions, start=None)


_FORMS: Final = {
    1: (positions_to_json, positions_from_json),
    2: (columns_to_json, columns_from_json),
}
"""By version, the functions that write and read positions."""
VERSIONS: Final = tuple(_FORMS)
