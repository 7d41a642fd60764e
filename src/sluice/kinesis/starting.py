"""Where reading starts and ends, as users say it: a word, a time, or sequence numbers by shard."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from sluice.errors import OptionError
from sluice.options import Kind
from sluice.source.log import IteratorStart
from sluice.source.splits import SplitId

__all__ = [
    "ENDING_POSITION",
    "LATEST",
    "STARTING_POSITION",
    "TIMESTAMP",
    "TRIM_HORIZON",
    "AtTimestamp",
    "EndingPosition",
    "Latest",
    "PerShard",
    "ShardTable",
    "StartingPosition",
    "TrimHorizon",
    "Word",
]


@dataclass(frozen=True, slots=True)
class Latest:
    """What comes after now; as an end: what is there now."""


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """The oldest record there is."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record that arrived at or after `instant` (microseconds since the epoch)."""

    instant: int


@dataclass(frozen=True)
class PerShard:
    """Sequence numbers for some shards; all others start at the horizon."""

    positions: Mapping[SplitId, IteratorStart] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(frozenset(self.positions.items()))


StartingPosition = Latest | TrimHorizon | AtTimestamp | PerShard
EndingPosition = Latest | AtTimestamp

LATEST: Final = Latest()
TRIM_HORIZON: Final = TrimHorizon()


# --- parsing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Word:
    """``LATEST``, ``TRIM_HORIZON`` or ``AT_TIMESTAMP``, before the time is known."""

    text: str


@dataclass(frozen=True, slots=True)
class ShardTable:
    """The JSON form as parsed, before it is known which streams there are.

    Attributes:
        shards: of the only stream, when the JSON names none.
        streams: stream to its shards, when it does.
    """

    shards: Mapping[str, IteratorStart] | None = None
    streams: Mapping[str, Mapping[str, IteratorStart]] | None = None

    def resolve(self, names: Collection[str]) -> PerShard:
        """The positions for the streams that are read. Raises OptionError, to follow the option's name."""
        if self.shards is not None:
            if len(names) != 1:
                raise OptionError(
                    "lists shards without their stream: with several streams it is "
                    '{"<stream>": {"<shardId>": {...}}}'
                )
            table: Mapping[str, Mapping[str, IteratorStart]] = {next(iter(names)): self.shards}
        else:
            table = self.streams or {}
        unknown = sorted(set(table) - set(names))
        if unknown:
            raise OptionError(
                f"names stream '{unknown[0]}', which is not read: the streams are {', '.join(sorted(names))}"
            )
        return PerShard(
            {
                SplitId(stream, shard): start
                for stream, shards in table.items()
                for shard, start in shards.items()
            }
        )


# The service writes no leading zeros, but emulators do, and what a row shows must be good here.
_SEQUENCE_NUMBER = re.compile(r"[0-9]{1,129}")
_KINDS: Final = ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER")
_FORM: Final = '{"<shardId>": {"AT_SEQUENCE_NUMBER": "<digits>"}}, or AFTER_SEQUENCE_NUMBER'


def _parse_start(text: str) -> Word | ShardTable:
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    return _word(text, "LATEST", "TRIM_HORIZON", "AT_TIMESTAMP")


def _parse_end(text: str) -> Word:
    return _word(text, "LATEST", "AT_TIMESTAMP")


def _word(text: str, *allowed: str) -> Word:
    word = text.strip().upper()
    if word not in allowed:
        raise ValueError(text)
    return Word(word)


def _parse_json(text: str) -> ShardTable:
    try:
        parsed = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise OptionError(f"is not JSON ({error}): {_shown(text)}") from None
    if not parsed:
        raise OptionError(f"lists no shard: expected {_FORM}")
    if all(_is_position(value) for value in parsed.values()):
        return ShardTable(shards={shard: _start(shard, value) for shard, value in parsed.items()})
    streams: dict[str, dict[str, IteratorStart]] = {}
    for stream, shards in parsed.items():
        if not isinstance(shards, dict) or not shards or _is_position(shards):
            raise OptionError(
                f"has {_shown(shards)} for '{stream}': expected {_FORM}, in every entry the same way"
            )
        streams[stream] = {shard: _start(shard, value) for shard, value in shards.items()}
    return ShardTable(streams=streams)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise OptionError(f"has '{twice}' more than once")
    return result


def _is_position(value: Any) -> bool:
    # A kind that is misspelt must not be taken for a shard: shards have a position each, not a number.
    return isinstance(value, dict) and any(
        key.upper() in _KINDS or not isinstance(inner, dict) for key, inner in value.items()
    )


def _start(shard: str, value: Any) -> IteratorStart:
    if not isinstance(value, dict) or len(value) != 1:
        raise OptionError(f"has {_shown(value)} for shard '{shard}': expected one of {' or '.join(_KINDS)}")
    ((name, number),) = value.items()
    kind = name.upper()
    if kind not in _KINDS:
        raise OptionError(f"has '{name}' for shard '{shard}': expected {' or '.join(_KINDS)}")
    # A number that is no string has been through a double somewhere: 56 digits do not survive that.
    if not isinstance(number, str) or _SEQUENCE_NUMBER.fullmatch(number) is None:
        raise OptionError(
            f"has {_shown(number)} as sequence number of shard '{shard}': expected a string of digits"
        )
    if kind == "AT_SEQUENCE_NUMBER":
        return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=number)
    return IteratorStart("AFTER_SEQUENCE_NUMBER", sequence_number=number)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")


# --- times --------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Eleven digits reach past the year 5000; thirteen would be milliseconds.
_NUMBER = re.compile(r"\d{1,11}(\.\d+)?")
_ISO = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[Tt ](?P<minute>\d\d:\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?)?"
    r"\s?(?P<zone>[Zz]|[+-]\d\d(?::?\d\d)?)?"
)


def _parse_timestamp(text: str) -> int:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return int(Decimal(text) * 1_000_000)
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(text)
    # Taken apart by hand: fromisoformat of Python 3.10 knows neither Z nor most fractions.
    moment = datetime.fromisoformat(f"{match['day']} {match['minute'] or '00:00'}:{match['second'] or '00'}")
    micros = int((match["fraction"] or "").ljust(6, "0")[:6])
    zone = _offset(match["zone"] or "Z")
    return (moment.replace(tzinfo=timezone(zone)) - _EPOCH) // timedelta(microseconds=1) + micros


def _offset(zone: str) -> timedelta:
    if zone in "Zz":
        return timedelta(0)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if int(digits[2:]) > 59:
        raise ValueError(zone)
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return -offset if zone[0] == "-" else offset


STARTING_POSITION: Kind[Word | ShardTable] = Kind(
    "position", "LATEST, TRIM_HORIZON, AT_TIMESTAMP, or JSON: " + _FORM, _parse_start
)
ENDING_POSITION: Kind[Word] = Kind("position", "LATEST or AT_TIMESTAMP", _parse_end)
TIMESTAMP: Kind[int] = Kind(
    "timestamp",
    "ISO-8601 such as 2026-01-31T12:00:00.250Z (without an offset: UTC), or seconds since the epoch",
    _parse_timestamp,
)
