"""How much load each shard is for its agent, and which shards move so that all agents have about the same."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import Final

from sluice.source.model.splits import SplitId

__all__ = ["BalanceWatch", "ShardLoads", "Shares", "plan_moves"]

_WINDOW: Final = 60.0
"""Seconds after which bytes count 1/e as much as when they came."""
_LARGEST_PART: Final = 0.9
"""A shard may move if its load is at most this part of the difference between the two agents. The move of a
larger one would only exchange their loads."""
_BALANCED: Final = 0.05
"""Agents are balanced if their loads differ by no more than this part of the average load."""

# Shards of agents that are at work move only after a lasting difference: a shard that moves is polled for a
# moment.
_UNBALANCED: Final = 0.5
"""Two agents have to differ by more than this part of the average load ..."""
_UNBALANCED_BYTES: Final = 1024 * 1024
"""... and by more than this many bytes a second ..."""
_UNBALANCED_FOR: Final = 60.0
"""... for this many seconds."""
_CHECK_INTERVAL: Final = 10.0
"""Seconds between two checks of that."""
_PART_AT_ONCE: Final = 0.1
"""The part of all shards that may move then ..."""
_FEWEST_AT_ONCE: Final = 4
"""... and how many may in any case."""

Shares = Mapping[str, Mapping[SplitId, float]]
"""By host of an agent: its shards, and the load of each (bytes a second, more than 0)."""


class ShardLoads:
    """Bytes a second that shards bring. Not thread-safe.

    Args:
        idle: the load of a shard without records (bytes a second). Shards of which nothing is known count
            the same.
        clock: monotonic seconds.
    """

    def __init__(self, idle: float, clock: Callable[[], float]) -> None:
        self._idle = idle
        self._clock = clock
        self._shards: dict[SplitId, tuple[float, float]] = {}  # when bytes came last, and those that count

    def record(self, split: SplitId, size: int) -> None:
        """`size` bytes have come."""
        now = self._clock()
        at, counted = self._shards.get(split, (now, 0.0))
        self._shards[split] = now, counted * math.exp((at - now) / _WINDOW) + size

    def forget(self, split: SplitId) -> None:
        """The shard is not read any more."""
        self._shards.pop(split, None)

    def __getitem__(self, split: SplitId) -> float:
        """The load of a shard (bytes a second)."""
        if (found := self._shards.get(split)) is None:
            return self._idle
        at, counted = found
        return self._idle + counted * math.exp((at - self._clock()) / _WINDOW) / _WINDOW


def plan_moves(
    shares: Shares,
    *,
    slack: float | None = None,
    most: int | None = None,
    may_move: Callable[[SplitId], bool] = lambda _split: True,
) -> dict[SplitId, str]:
    """Few moves of shards after which agents are balanced, as far as shards allow.

    Each move takes a shard from the agent with the largest load among those with a shard whose move helps,
    and gives it to the agent with the smallest. No shard moves twice, and no agent gets as much as the
    largest.

    Args:
        slack: agents whose loads differ by no more are balanced; by default 5 % of the average load.
        most: how many moves there may be; None: as many as help.
        may_move: whether a shard may move now.

    Returns:
        Shards, and the hosts whose agents get them.
    """
    totals = {host: sum(shards.values()) for host, shards in shares.items()}
    if slack is None:
        slack = _BALANCED * _mean(shares)
    movable = {
        host: sorted((load, split) for split, load in shards.items() if may_move(split))
        for host, shards in shares.items()
    }
    moves: dict[SplitId, str] = {}
    while len(totals) > 1 and (most is None or len(moves) < most):
        by_load = sorted(totals, key=lambda host: (totals[host], host))
        least = by_load[0]
        for host in reversed(by_load[1:]):
            gap = totals[host] - totals[least]
            if gap > slack and (index := _find_nearest(movable[host], gap)) is not None:
                break
        else:
            break
        load, split = movable[host].pop(index)
        moves[split] = least
        totals[host] -= load
        totals[least] += load
    return moves


def _find_nearest(shards: list[tuple[float, SplitId]], gap: float) -> int | None:
    """The index of the shard whose move leaves the smallest difference between two agents."""
    after = bisect.bisect_left(shards, gap / 2, key=lambda shard: shard[0])
    near = [index for index in (after - 1, after) if 0 <= index < len(shards)]
    near = [index for index in near if shards[index][0] <= gap * _LARGEST_PART]
    return min(near, key=lambda index: abs(shards[index][0] - gap / 2), default=None)


def _mean(shares: Shares) -> float:
    return sum(sum(shards.values()) for shards in shares.values()) / max(len(shares), 1)


class BalanceWatch:
    """Moves some shards when the loads of agents have differed for a minute. Not thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_check = -math.inf
        self._unlike_since: float | None = None

    def reset(self) -> None:
        """Agents come or go, and shards are dealt out anew: the minute begins then."""
        self._unlike_since = None

    def plan(
        self, get_shares: Callable[[], Shares], may_move: Callable[[SplitId], bool]
    ) -> dict[SplitId, str]:
        """The moves to make now, as `plan_moves` gives them; mostly none. Call it every second or so."""
        now = self._clock()
        if now < self._next_check:
            return {}
        self._next_check = now + _CHECK_INTERVAL
        shares = get_shares()
        if not plan_moves(shares, slack=max(_UNBALANCED * _mean(shares), _UNBALANCED_BYTES), most=1):
            self._unlike_since = None
            return {}
        if self._unlike_since is None:
            self._unlike_since = now
        if now - self._unlike_since < _UNBALANCED_FOR:
            return {}
        self._unlike_since = None
        shards = sum(map(len, shares.values()))
        most = max(int(shards * _PART_AT_ONCE), _FEWEST_AT_ONCE)
        return plan_moves(shares, most=most, may_move=may_move)
