"""Where a new query starts: a word, or sequence numbers by shard. There are no iterators by time."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from sluice.aws.names.shard_table import FORM, ShardTable, parse_shard_table, quoted
from sluice.errors import OptionError
from sluice.instants import MICROS_PER_SECOND
from sluice.options import Kind, Option
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Position, before
from sluice.source.model.positions import sequence_of
from sluice.source.model.splits import Split, SplitId

if TYPE_CHECKING:
    from sluice.dynamodb_streams.client import DynamoDbStreamsLog

__all__ = [
    "STARTING",
    "ByShard",
    "ShardStart",
    "StartingPosition",
    "initial_positions",
    "starting_text",
]

_KINDS: Final = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "SHARD_END")
_DIGITS: Final = re.compile(r"[0-9]{21,40}")
_MINUTE: Final = 60 * MICROS_PER_SECOND

ShardStart = tuple[str, str | None]
"""A member of `_KINDS`, and a sequence number for the first two."""
Word = Literal["LATEST", "TRIM_HORIZON"]


@dataclass(frozen=True, slots=True)
class ByShard:
    """Where some shards start. All others start at their oldest record."""

    starts: Mapping[SplitId, ShardStart] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.starts.items()))

    @classmethod
    def of(cls, table: ShardTable[ShardStart], names: Collection[str]) -> ByShard:
        """Reads the JSON form for the tables of the query.

        Raises:
            OptionError: its message follows the option's name.
        """
        return cls({SplitId(*key): start for key, start in table.resolve(names).items()})


StartingPosition = Word | ByShard


def _parse(text: str) -> Word | ShardTable[ShardStart]:
    if text.lstrip().startswith("{"):
        return parse_shard_table(text, "table", _KINDS, _start)
    match text.strip().upper():
        case "LATEST":
            return "LATEST"
        case "TRIM_HORIZON":
            return "TRIM_HORIZON"
    raise ValueError(text)


def _start(shard: str, value: Any) -> ShardStart:
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)).upper() not in _KINDS:
        raise OptionError(f"has {quoted(value)} for shard '{shard}': expected one of {' or '.join(_KINDS)}")
    ((kind, given),) = value.items()
    kind = kind.upper()
    if kind in ("TRIM_HORIZON", "SHARD_END"):
        if given is not True:
            raise OptionError(f"has {quoted(given)} as {kind} of shard '{shard}': expected true")
        return kind, None
    # A JSON number may have been parsed as a double, which loses digits.
    if not isinstance(given, str) or _DIGITS.fullmatch(given) is None:
        raise OptionError(
            f"has {quoted(given)} as sequence number of shard '{shard}': expected a string of 21 to 40 digits"
        )
    return kind, given


STARTING: Option[Word | ShardTable[ShardStart]] = Option(
    "startingPosition",
    Kind("position", "LATEST, TRIM_HORIZON, or JSON: " + FORM, _parse),
    None,
    "Where a new query, or a table added to one, starts: `LATEST`, `TRIM_HORIZON`, or JSON with a "
    'position for each shard: `{"<shardId>": {"AT_SEQUENCE_NUMBER": "..."}}`; with several tables, '
    '`{"<table>": {"<shardId>": ...}}`. Other positions are `AFTER_SEQUENCE_NUMBER` and '
    '`{"SHARD_END": true}`, which skips the shard. Shards that are not listed start at '
    "`TRIM_HORIZON`.",
    shown_default="`LATEST`; in batch reads `TRIM_HORIZON`",
)


def initial_positions(
    start: StartingPosition, splits: Iterable[Split], now: int, log: DynamoDbStreamsLog
) -> Mapping[SplitId, Position]:
    """Returns the positions of the splits at which a query starts.

    ``LATEST`` is the newest record of every open shard; a closed shard has nothing later. A shard
    without records is logged with the minute of the start, from which a restart resumes: services
    truncate the times of records, even to minutes.

    Args:
        now: the service's time (microseconds since the epoch).
        log: for iterators at the newest records.

    Raises:
        OptionError: a position names a shard that does not exist.
        ServiceError: a call failed, and retries did not help.
    """
    splits = list(splits)
    if isinstance(start, ByShard):
        return _positions_by_shard(start, splits, now)
    if start == "TRIM_HORIZON":
        return {split.id: AtHorizon(pinned=now) for split in splits}
    instant = now // _MINUTE * _MINUTE
    log.start_at_latest([split.id for split in splits if not split.is_closed], instant)
    latest = AtTime(instant, pinned=now)
    return {split.id: Closed() if split.is_closed else latest for split in splits}


def starting_text(start: StartingPosition) -> str:
    """The starting position as text for the offset log, which shows if it changes."""
    if not isinstance(start, ByShard):
        return start
    listed = sorted((str(split), *at) for split, at in start.starts.items())
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]
    return f"sequence numbers of {len(listed)} shards ({digest})"


def _positions_by_shard(start: ByShard, splits: Collection[Split], now: int) -> Mapping[SplitId, Position]:
    ids = [split.id for split in splits]
    tables = {split.stream for split in ids}  # the tables that start now; a checkpoint has the others
    if unknown := sorted({split for split in start.starts if split.stream in tables} - set(ids)):
        shown = ", ".join(sorted(split.shard for split in ids if split.stream == unknown[0].stream)[:20])
        raise OptionError(
            f"option '{STARTING.key}' names shard '{unknown[0].shard}', which the stream of table "
            f"'{unknown[0].stream}' does not have: its shards are {shown}"
        )
    return {split.id: _position(start.starts.get(split.id), now, split) for split in splits}


def _position(start: ShardStart | None, now: int, split: Split) -> Position:
    if start is not None and start[1] is not None:
        return _number_position(start[0], start[1], now, split)
    return AtHorizon(pinned=now) if start is None or start[0] == "TRIM_HORIZON" else Closed()


def _number_position(kind: str, number: str, now: int, split: Split) -> Position:
    """Returns the position at or after a number.

    The numbers at the start and the end of a listed shard may, but need not, belong to records.
    """
    first, here = sequence_of(split.starting_sequence), int(number)
    last = None if split.ending_sequence is None else sequence_of(split.ending_sequence)
    if kind == "AT_SEQUENCE_NUMBER":
        if here <= first:
            return AtHorizon(pinned=now)
        return Closed() if last is not None and here > last else before(number)
    if here < first or here == 0:
        return AtHorizon(pinned=now)
    return Closed() if last is not None and here >= last else After(number)
