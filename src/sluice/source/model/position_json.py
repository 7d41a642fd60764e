"""Positions as version 1 of the offsets has them: an object for each split; see `offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.instants import iso_instant, parse_instant
from sluice.source.model.positions import After, AtHorizon, AtTime, Closed, Position
from sluice.source.model.sequence import checked_number
from sluice.source.model.splits import SplitId

__all__ = ["micros_of", "positions_from_json", "positions_to_json"]


def positions_to_json(positions: Mapping[SplitId, Position]) -> dict[str, dict[str, Any]]:
    streams: dict[str, dict[str, Any]] = {}
    for split, position in sorted(positions.items(), key=lambda item: item[0]):
        streams.setdefault(split.stream, {})[split.shard] = _position_to_json(position)
    return streams


def positions_from_json(streams: Mapping[str, Any]) -> dict[SplitId, Position]:
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
            value = {"at": iso_instant(position.instant)}
            if position.number is not None:
                value["number"] = position.number
            return value | _hints(pinned=position.pinned, idle=position.caught_up_at)
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
            start_caught_up_at=micros_of(value.get("quiet")), unlisted_at=micros_of(value.get("unlisted"))
        )
    if "after" in value:
        sub = value.get("sub")
        return After(
            checked_number(value["after"]),
            None if sub is None else int(sub),
            next=_number(value, "next"),
            arrival=micros_of(value.get("arrival")),
            caught_up_at=micros_of(value.get("idle")),
            start_caught_up_at=micros_of(value.get("quiet")),
        )
    pinned, caught_up_at = micros_of(value.get("pinned")), micros_of(value.get("idle"))
    if value["at"] == "TRIM_HORIZON":
        return AtHorizon(_number(value, "next"), pinned, caught_up_at)
    return AtTime(parse_instant(value["at"]), pinned, caught_up_at, _number(value, "number"))


def _number(value: Mapping[str, Any], key: str) -> str | None:
    return None if value.get(key) is None else checked_number(value[key])


def micros_of(millis: Any) -> int | None:
    return None if millis is None else int(millis) * 1000
