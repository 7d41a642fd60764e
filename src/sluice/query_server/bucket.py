"""What a query's tasks get from their common bucket. No clock, no IO: every method is told the time.

One rule holds in every window of time: no more than ``rate * seconds + burst`` tokens are used, whichever
tasks die, are late or lose their connection. So a token that a task holds counts as one in the bucket until
the task has said that it used it: with those that tasks hold, the bucket has `burst` at most. When a task
dies, what it holds counts as used.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["HOLD_TIME", "LEASE_TIME", "LONGEST_STEP", "ROUNDING", "SHARE_TIME", "Grant", "QueryBucket"]

HOLD_TIME: Final = 1.0
"""Seconds for which a task may use granted tokens."""
LEASE_TIME: Final = 5.0
"""Seconds after a grant at which the bucket takes unused tokens back. Longer than `HOLD_TIME` plus a task's
`ANSWER_TIMEOUT`, so that no token is used twice."""
LONGEST_STEP: Final = 1.5
"""Seconds for which the bucket fills at most between two calls. The server calls it twice a second. After a
longer pause the server was suspended, and its tasks have sent without it meanwhile."""
SHARE_TIME: Final = 60.0
"""Seconds for which the bucket keeps a disconnected task's fallback share for it. A task that can reach the
server is back within 35 s."""
# A task that uses its fallback share tries to connect every 5 s, for 5 s at most. If it has not tried for
# longer, it sends nothing until it has (see `QueryBucketStrategy`). So it is back within 20 s, or 15 s later
# if an attempt fails. Seconds in which the server is suspended do not count, because nobody can connect. Only
# a task whose attempts fail for a minute, while the server serves others, sends on top of what they send; so
# does a task that has never reached the server.

ROUNDING: Final = 1e-6
"""Tokens are sums of fractions. Nobody waits for less than this."""
_LEASE_SECONDS: Final = 0.02
"""A task is granted more than it asked for, if there is enough: its share of the tokens of this many seconds.
It saves round trips if requests are many and small."""
_LARGEST_LEASE: Final = 0.25
"""Part of the burst that all tasks together may be granted beyond what they asked for."""


class Grant(NamedTuple):
    """Tokens for a task."""

    task: str
    tokens: float


@dataclass(slots=True)
class _FallbackShare:
    """What a disconnected task takes of rate and burst."""

    part: float
    seconds_left: float = SHARE_TIME


@dataclass(slots=True)
class _Member:
    """A task that takes from the bucket, and what it holds."""

    held: float = 0.0
    granted_at: float = -math.inf


class QueryBucket:
    """The tokens of one query.

    Args:
        rate: tokens a second.
        burst: the most that may be used at once.
        now: the time.
        full: whether it starts full; else it starts empty.
    """

    def __init__(self, rate: float, burst: float, now: float, *, full: bool) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst if full else 0.0  # below zero after a request larger than the burst
        self._counted_at = now
        self._members: dict[str, _Member] = {}
        self._queue: deque[tuple[str, float]] = deque()  # who asks for how many, in order
        self._fallback_shares: dict[str, _FallbackShare] = {}
        self._epoch = ""

    @property
    def members(self) -> tuple[str, ...]:
        """The tasks that take from the bucket."""
        return tuple(self._members)

    def join(self, task: str, epoch: str, now: float) -> None:
        """A task is there. The first one of an epoch means that none of the epoch before is left."""
        self._advance(now)
        if epoch != self._epoch:
            self._epoch = epoch
            self._fallback_shares.clear()
        self._fallback_shares.pop(task, None)
        self._members.setdefault(task, _Member())

    def ask(self, task: str, tokens: float, now: float, *, returned: float = 0.0) -> None:
        """A task asks for tokens, once at a time. `grants` gives them to it.

        Args:
            task: which one.
            tokens: how many.
            now: the time.
            returned: tokens that it holds and will not use.
        """
        self._advance(now)
        self._give_back(task, returned)
        self._queue.append((task, tokens))

    def sent(self, task: str, tokens: float, now: float) -> None:
        """A task has used tokens that it holds."""
        self._advance(now)
        member = self._members[task]
        used = min(tokens, member.held)
        member.held -= used
        self._level -= tokens - used  # the lease was over

    def leave(self, task: str, now: float, *, returned: float = 0.0, share: float = 0.0) -> None:
        """A task is gone.

        Args:
            task: which one; one that is not there is ignored.
            now: the time.
            returned: tokens that it will not use; any others that it holds count as used.
            share: it goes on at this share of rate and burst, which the others do not get meanwhile: until
                it joins again, or for `SHARE_TIME`.
        """
        self._advance(now)
        if task not in self._members:
            return
        self._give_back(task, returned)
        del self._members[task]
        self._queue = deque(item for item in self._queue if item[0] != task)
        if share > 0.0:
            self._fallback_shares[task] = _FallbackShare(share)
            # What it may save up by itself is not to be had here: all together hold no more than the burst.
            self._level = min(self._level, self._current_burst - self._held)

    def grants(self, now: float) -> list[Grant]:
        """What can be given now, to those who asked first."""
        self._advance(now)
        given: list[Grant] = []
        while self._queue and self._wait(self._queue[0][1]) <= 0.0:
            task, tokens = self._queue.popleft()
            tokens += self._extra(tokens)
            member = self._members[task]
            member.held += tokens
            member.granted_at = now
            self._level -= tokens
            given.append(Grant(task, tokens))
        return given

    def queued(self) -> Iterator[tuple[str, float]]:
        """The tasks whose turn has not come, and how long they have to wait as it looks now, in seconds."""
        missing = -self._level
        for task, tokens in self._queue:
            missing += tokens
            yield task, max(0.0, missing / self._current_rate)

    def wait(self) -> float:
        """Seconds until `grants` may give something, as it looks now; infinity if nobody asks."""
        return self._wait(self._queue[0][1]) if self._queue else math.inf

    def _wait(self, tokens: float) -> float:
        missing = min(tokens, self._current_burst) - self._level
        return missing / self._current_rate if missing > ROUNDING else 0.0

    def _extra(self, tokens: float) -> float:
        if self._queue:
            return 0.0
        most = min(self._rate * _LEASE_SECONDS, self._burst * _LARGEST_LEASE) / len(self._members)
        return max(0.0, min(most, self._level) - tokens)

    def _give_back(self, task: str, tokens: float) -> None:
        member = self._members[task]
        returned = min(tokens, member.held)  # those whose lease was over are here already
        member.held -= returned
        self._level += returned

    @property
    def _shared_part(self) -> float:
        """The part of rate and burst that no disconnected task uses as its fallback share."""
        # At least 1 %: if fallback shares add up to the whole, some belong to tasks that have ended.
        return max(1.0 - sum(share.part for share in self._fallback_shares.values()), 0.01)

    @property
    def _current_rate(self) -> float:
        return self._rate * self._shared_part

    @property
    def _current_burst(self) -> float:
        return self._burst * self._shared_part

    @property
    def _held(self) -> float:
        return sum(member.held for member in self._members.values())

    def _advance(self, now: float) -> None:
        """Fills the bucket up to now, and takes back what was not used in time."""
        seconds = max(0.0, min(now - self._counted_at, LONGEST_STEP))
        self._counted_at = max(now, self._counted_at)
        room = max(0.0, self._current_burst - self._held - self._level)
        self._level += min(room, seconds * self._current_rate)
        self._free_shares(seconds)
        for member in self._members.values():
            if member.held and now - member.granted_at >= LEASE_TIME:
                self._level += member.held
                member.held = 0.0

    def _free_shares(self, seconds: float) -> None:
        """Gives the others what tasks that have not come back do not use any more."""
        for task, share in list(self._fallback_shares.items()):
            share.seconds_left -= seconds
            if share.seconds_left <= 0.0:
                del self._fallback_shares[task]
