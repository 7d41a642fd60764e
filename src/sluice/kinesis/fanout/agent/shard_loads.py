"""How much each shard asks of the agent that has it, and which shards move so that agents have alike."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import Final

from sluice.source.splits import SplitId

__all__ = ["BalanceWatch", "ShardLoads", "Shares", "plan_moves"]

_WINDOW: Final = 60.0
"""Seconds over which bytes count. What came so long ago counts 1/e, and so on."""
_LARGEST_PART: Final = 0.9
"""Of the difference of two agents: a shard that is more of it would make the one what the other is now."""
_ALIKE: Final = 0.05
"""Agents have alike that differ by this part of what they have on average."""

_UNLIKE: Final = 0.5
_UNLIKE_BYTES: Final = 1024 * 1024
"""Shards of agents that work move only if two agents differ by more than this part of what they have on
average, and by more than so many bytes a second..."""
_UNLIKE_FOR: Final = 60.0
"""... for so many seconds: a shard that moves is polled for a moment."""
_LOOK_INTERVAL: Final = 10.0
_PART_AT_ONCE: Final = 0.1
_FEWEST_AT_ONCE: Final = 4
"""The part of the shards that may move then, and their number where they are few."""

Shares = Mapping[str, Mapping[SplitId, float]]
"""What agents have, by host: shards, and what these ask for (bytes a second, more than 0)."""


class ShardLoads:
    """Bytes a second that shards bring. Not thread-safe.

    Args:
        idle: what a shard without records asks of an agent, as bytes a second. It makes shards of which
            nothing is known count alike.
        clock: monotonic seconds.
    """

    def __init__(self, idle: float, clock: Callable[[], float]) -> None:
        self._idle = idle
        self._clock = clock
        self._shards: dict[SplitId, tuple[float, float]] = {}  # when bytes came last, and those that count

    def record(self, split: SplitId, size: int) -> None:
        """So many bytes have come."""
        now = self._clock()
        at, counted = self._shards.get(split, (now, 0.0))
        self._shards[split] = now, counted * math.exp((at - now) / _WINDOW) + size

    def forget(self, split: SplitId) -> None:
        """The shard is not read any more."""
        self._shards.pop(split, None)

    def __getitem__(self, split: SplitId) -> float:
        """What a shard asks of an agent (bytes a second)."""
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
    """Few moves after which agents have alike, as far as shards can be dealt out so.

    Each takes a shard from the agent that has most, among those with a shard that helps, and gives it to the
    one that has least. None moves twice, and no agent gets as much as the one that has most.

    Args:
        slack: agents that differ by no more have alike; by default by 5 % of what they have on average.
        most: so many moves at most; None: as many as help.
        may_move: whether a shard may move now.

    Returns:
        Shards, and the hosts whose agents get them.
    """
    totals = {host: sum(shards.values()) for host, shards in shares.items()}
    if slack is None:
        slack = _ALIKE * _mean(shares)
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
    """The index of the shard whose move leaves the least of the difference of two agents."""
    after = bisect.bisect_left(shards, gap / 2, key=lambda shard: shard[0])
    near = [index for index in (after - 1, after) if 0 <= index < len(shards)]
    near = [index for index in near if shards[index][0] <= gap * _LARGEST_PART]
    return min(near, key=lambda index: abs(shards[index][0] - gap / 2), default=None)


def _mean(shares: Shares) -> float:
    return sum(sum(shards.values()) for shards in shares.values()) / max(len(shares), 1)


class BalanceWatch:
    """Has some shards move where agents have received unlike for a minute. Not thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._look_at = -math.inf
        self._unlike_since: float | None = None

    def reset(self) -> None:
        """Agents come or go, and shards are dealt out anew: the minute begins then."""
        self._unlike_since = None

    def plan(
        self, get_shares: Callable[[], Shares], may_move: Callable[[SplitId], bool]
    ) -> dict[SplitId, str]:
        """What is to move now, as `plan_moves` has it; mostly nothing. Call it every second or so."""
        now = self._clock()
        if now < self._look_at:
            return {}
        self._look_at = now + _LOOK_INTERVAL
        shares = get_shares()
        if not plan_moves(shares, slack=max(_UNLIKE * _mean(shares), _UNLIKE_BYTES), most=1):
            self._unlike_since = None
            return {}
        if self._unlike_since is None:
            self._unlike_since = now
        if now - self._unlike_since < _UNLIKE_FOR:
            return {}
        self._unlike_since = None
        shards = sum(map(len, shares.values()))
        most = max(int(shards * _PART_AT_ONCE), _FEWEST_AT_ONCE)
        return plan_moves(shares, most=most, may_move=may_move)
