"""Positions in shards, described for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.cli.report import duration
from sluice.instants import MICROS_PER_SECOND, iso_instant
from sluice.source.model.offsets import After, AtHorizon, AtTime, Closed, Offsets, Position
from sluice.source.model.splits import SplitId

__all__ = ["Lag", "describe", "known_lag", "position_json", "shortened"]


@dataclass(frozen=True)
class Lag:
    """How far a position is behind the tip of its shard.

    Attributes:
        seconds: None if nothing is known.
        basis: what the lag is known from. ``service``: the first unread record, which the service was asked
            for, has this age. ``arrival``, ``start`` or ``caughtUp``: the checkpoint alone, and the position
            is at most this far behind: all records up to then had been read. ``closed``: the shard was read
            to its end. ``gone``: the service does not know it any more. ``throttled``: others use up its
            reads.
    """

    seconds: float | None
    basis: str

    @property
    def text(self) -> str:
        if self.basis == "closed":
            return "read to its end"
        if self.seconds is None:
            return {"gone": "gone from the stream", "throttled": "throttled"}.get(self.basis, "unknown")
        if self.basis == "service":
            return "at the tip" if self.seconds == 0 else f"{duration(self.seconds)} behind"
        return f"at most {duration(self.seconds)}"


def known_lag(position: Position, now: int) -> Lag:
    """The lag at `now` (microseconds), as far as a checkpoint alone tells it."""
    if isinstance(position, Closed):
        return Lag(0.0, "closed")
    known = {
        "arrival": getattr(position, "arrival", None),
        "start": getattr(position, "instant", None),
        "caughtUp": position.caught_up_at,
    }
    latest = max(((at, basis) for basis, at in known.items() if at is not None), default=None)
    if latest is None:
        return Lag(None, "unknown")
    return Lag(max(0, now - latest[0]) / MICROS_PER_SECOND, latest[1])


def shortened(number: str) -> str:
    """A sequence number cut for a table. Its last digits distinguish the records of a shard."""
    return number if len(number) <= 28 else f"{number[:8]}…{number[-12:]}"


def describe(position: Position, shown: Callable[[str], str] = shortened) -> str:
    """A position in a few words.

    Args:
        shown: a sequence number as people read it.
    """
    match position:
        case After():
            inside = "" if position.sub is None else f", user record {position.sub} of it"
            arrived = "" if position.arrival is None else f" ({iso_instant(position.arrival)})"
            return f"after {shown(position.number)}{inside}{arrived}"
        case AtTime():
            return f"at {iso_instant(position.instant)}"
        case AtHorizon():
            return "at TRIM_HORIZON"
        case Closed():
            return "closed"


def position_json(position: Position) -> Mapping[str, Any]:
    """A position in the form of the offset log."""
    split = SplitId("stream", "shard")
    value: Mapping[str, Any] = Offsets({split: position}).to_json()["streams"]["stream"]["shard"]
    return value
