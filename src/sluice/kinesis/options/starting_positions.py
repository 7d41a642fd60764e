"""Where reading starts and ends, as users write it: a word, a time, or sequence numbers by shard."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from sluice.aws.names.shard_table import FORM, ShardTable, parse_shard_table, quoted
from sluice.errors import OptionError
from sluice.instants import MICROS_PER_SECOND, TIME_FORM, iso_instant, parse_time
from sluice.options import Kind, Option, choice
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Position, before
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import Split, SplitId
from sluice.source.settings import TIMESTAMP

if TYPE_CHECKING:  # tasks and ``load()`` parse options, and plan nothing
    from sluice.source.planning.enumerator import InitialPositions

__all__ = [
    "ENDING",
    "ENDING_TIMESTAMP",
    "LATEST",
    "STARTING",
    "STARTING_TIMESTAMP",
    "TRIM_HORIZON",
    "AtTimestamp",
    "EndingPosition",
    "PerShard",
    "ShardStart",
    "StartingPosition",
    "ending_instant",
    "initial_positions",
    "shard_position",
    "starting_text",
    "time_position",
]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """As a start: the first record that arrived at or after `instant`. As an end: the last one before it.

    Attributes:
        instant: microseconds since the epoch.
    """

    instant: int


ShardStart = IteratorStart | After | Closed
"""Where one shard starts: as an iterator does, inside an aggregated record, or at the shard's end."""


@dataclass(frozen=True)
class PerShard:
    """Positions of some shards; all other shards start at TRIM_HORIZON."""

    positions: Mapping[SplitId, ShardStart] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.positions.items()))

    @classmethod
    def of(cls, table: ShardTable[ShardStart], streams: Collection[str]) -> PerShard:
        """The positions of the streams that are read, from a table.

        Raises:
            OptionError: its message continues the name of the option.
        """
        return cls({SplitId(*key): start for key, start in table.resolve(streams).items()})


StartingPosition = Literal["LATEST", "TRIM_HORIZON"] | AtTimestamp | PerShard
EndingPosition = Literal["LATEST"] | AtTimestamp

LATEST: Final = "LATEST"
"""As a start: records that arrive from now on. As an end: records that exist now."""
TRIM_HORIZON: Final = "TRIM_HORIZON"
"""The oldest record that the stream still has."""


# --- parsing ------------------------------------------------------------------------------------------


# The service writes no leading zeros, but emulators do; users copy the numbers from rows.
_SEQUENCE_NUMBER = re.compile(r"[0-9]{1,129}")

_SUB: Final = "SUB_SEQUENCE_NUMBER"
_KINDS: Final = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP", "TRIM_HORIZON", "SHARD_END")


_word: Final = choice("LATEST", "TRIM_HORIZON", "AT_TIMESTAMP").parse


def _parse_start(text: str) -> str | ShardTable[ShardStart]:
    if text.lstrip().startswith("{"):
        return parse_shard_table(text, "stream", _KINDS, _start)
    return _word(text)


def _start(shard: str, value: Any) -> ShardStart:
    keys = {name.upper(): inner for name, inner in value.items()} if isinstance(value, dict) else {}
    sub = keys.pop(_SUB, None)
    if len(keys) != 1:
        raise OptionError(f"has {quoted(value)} for shard '{shard}': expected one of {' or '.join(_KINDS)}")
    ((kind, given),) = keys.items()
    if kind not in _KINDS:
        name = next(iter(value))
        raise OptionError(f"has '{name}' for shard '{shard}': expected {' or '.join(_KINDS)}")
    if sub is not None and (kind != "AFTER_SEQUENCE_NUMBER" or not _is_count(sub)):
        raise OptionError(
            f"has {quoted(sub)} as {_SUB} of shard '{shard}': expected a whole number from 0, with "
            "AFTER_SEQUENCE_NUMBER"
        )
    if kind == "AT_TIMESTAMP":
        return IteratorStart("AT_TIMESTAMP", timestamp=_shard_time(shard, given))
    if kind in ("TRIM_HORIZON", "SHARD_END"):
        if given is not True:
            raise OptionError(f"has {quoted(given)} as {kind} of shard '{shard}': expected true")
        return Closed() if kind == "SHARD_END" else IteratorStart("TRIM_HORIZON")
    # A JSON number may have been parsed as a double, which loses most of the 56 digits.
    if not isinstance(given, str) or _SEQUENCE_NUMBER.fullmatch(given) is None:
        raise OptionError(
            f"has {quoted(given)} as sequence number of shard '{shard}': expected a string of digits"
        )
    if sub is not None:
        return After(given, sub)
    if kind == "AT_SEQUENCE_NUMBER":
        return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=given)
    return IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number=given)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shard_time(shard: str, given: Any) -> int:
    try:
        return parse_time(given if isinstance(given, str) else "")
    except ValueError:  # OptionError is one
        raise OptionError(
            f"has {quoted(given)} as AT_TIMESTAMP of shard '{shard}': allowed is {TIME_FORM}, as a string"
        ) from None


# --- the options ---------------------------------------------------------------------------------------

STARTING_POSITION: Kind[str | ShardTable[ShardStart]] = Kind(
    "position", "LATEST, TRIM_HORIZON, AT_TIMESTAMP, or JSON: " + FORM, _parse_start
)

STARTING = Option(
    "startingPosition",
    STARTING_POSITION,
    None,
    "Where a new query, or a stream added to one, starts: `LATEST`, `TRIM_HORIZON`, `AT_TIMESTAMP`, or JSON "
    '`{"<shardId>": {"AT_SEQUENCE_NUMBER": "..."}}` (also `AFTER_SEQUENCE_NUMBER`; with several streams '
    '`{"<stream>": {"<shardId>": ...}}`; shards not listed start at `TRIM_HORIZON`; '
    "`SUB_SEQUENCE_NUMBER` with `AFTER_SEQUENCE_NUMBER`: inside an aggregated record; also, for a shard, "
    '`{"AT_TIMESTAMP": "..."}`, or `{"SHARD_END": true}`, which leaves it out).',
    shown_default="LATEST",
)
STARTING_TIMESTAMP = Option(
    "startingTimestamp",
    TIMESTAMP,
    None,
    "With `AT_TIMESTAMP`: ISO-8601 (UTC without an offset), or seconds since the epoch, up to a day from "
    "now. A time in the future means the start of the query.",
)
ENDING = Option(
    "endingPosition",
    choice("LATEST", "AT_TIMESTAMP"),
    None,
    "Batch reads only: `LATEST` (the newest records when the read is planned) or `AT_TIMESTAMP`.",
    shown_default="LATEST",
)
ENDING_TIMESTAMP = Option(
    "endingTimestamp",
    TIMESTAMP,
    None,
    "With `endingPosition` `AT_TIMESTAMP`: only records that arrived before it are read. Same form as "
    "`startingTimestamp`.",
)


# --- positions of shards ------------------------------------------------------------------------------


def initial_positions(start: StartingPosition) -> InitialPositions:
    """The positions of the splits at which a query starts.

    Returns:
        A function of the splits and the service's time (microseconds since the epoch). It raises OptionError
        if a position names a shard that does not exist.
    """

    def positions_of(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        if isinstance(start, PerShard):
            return _positions_by_shard(start, splits, now)
        position: Position = AtHorizon(pinned=now)
        if start == LATEST:
            # Some services cut arrival times to seconds: the next record must not seem to be older.
            position = AtTime(now // MICROS_PER_SECOND * MICROS_PER_SECOND, pinned=now)
        elif isinstance(start, AtTimestamp):
            position = time_position(start.instant, now)
        return {split.id: position for split in splits}

    return positions_of


def starting_text(start: StartingPosition) -> str:
    """A starting position as text for the offset log, so that a later change is noticed."""
    match start:
        case str():
            return start
        case AtTimestamp(instant=instant):
            return f"AT_TIMESTAMP {iso_instant(instant)}"
        case PerShard(positions=positions):
            listed = sorted((str(split), *_start_text(at)) for split, at in positions.items())
            digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
            return f"sequence numbers of {len(listed)} shards ({digest})"


def _start_text(start: ShardStart) -> tuple[str, str | None]:
    match start:
        case Closed():
            return "SHARD_END", None
        case After(number=number, sub=sub):
            return f"{_SUB} {sub}", number
        case IteratorStart(timestamp=int(instant)):
            return start.kind, iso_instant(instant)
        case IteratorStart():
            return start.kind, start.sequence_number


def time_position(instant: int, now: int) -> AtTime:
    """The position of the first record that arrived at or after `instant`.

    Args:
        instant, now: microseconds since the epoch; `now` is the service's time.
    """
    # The service refuses times in its future; no records exist there yet.
    return AtTime(min(_whole_millisecond(instant), now), pinned=now)


def ending_instant(end: EndingPosition) -> int | None:
    """The instant (microseconds since the epoch) before which the records of a read arrived; None: any."""
    return _whole_millisecond(end.instant) if isinstance(end, AtTimestamp) else None


def _whole_millisecond(instant: int) -> int:
    """The first instant of those from `instant` on (microseconds) at which a record can arrive.

    Arrival times are whole milliseconds, and the service truncates the requested instants to milliseconds. So
    it would find records that arrived before.
    """
    return -(-instant // 1000) * 1000


def shard_position(start: ShardStart, now: int, split: Split | None = None) -> Position:
    """The starting position of a shard that the user named.

    Args:
        now: the service's time (microseconds since the epoch).
        split: the shard as it is listed; None if not known.
    """
    if isinstance(start, After | Closed):
        return start
    if start.timestamp is not None:
        return time_position(start.timestamp, now)
    number = start.sequence_number or "0"
    # The numbers that a listing has for the start and the end of a shard belong to no record.
    if int(number) <= (0 if split is None else sequence_of(split.starting_sequence)):
        return AtHorizon(pinned=now)
    ending = None if split is None else split.ending_sequence
    if ending is not None and int(number) >= sequence_of(ending):
        return Closed()
    return After(number) if start.kind == "AFTER_SEQUENCE_NUMBER" else before(number)


def _positions_by_shard(start: PerShard, splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
    splits = list(splits)
    ids = [split.id for split in splits]
    streams = {split.stream for split in ids}  # which start now; others resume from a checkpoint
    unknown = sorted({split for split in start.positions if split.stream in streams} - set(ids))
    if unknown:
        shown = ", ".join(sorted(split.shard for split in ids if split.stream == unknown[0].stream)[:20])
        raise OptionError(
            f"option '{STARTING.key}' names shard '{unknown[0].shard}', which stream '{unknown[0].stream}' "
            f"does not have: its shards are {shown}"
        )
    return {
        split.id: shard_position(start.positions[split.id], now, split)
        if split.id in start.positions
        else AtHorizon(pinned=now)
        for split in splits
    }
