"""Decides to which shards the agent subscribes, and when it subscribes again after an end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sluice.errors import ServiceError
from sluice.instants import iso_instant
from sluice.kinesis.planner.shard_subscription import ShardSubscription
from sluice.kinesis.shared.protocol import (
    INTEGRITY_PROBLEM,
    TAKEN_OVER,
    Acknowledge,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
)
from sluice.source.logs.cursor import iterator_start
from sluice.source.model.offsets import After, AtTime, Position
from sluice.source.model.splits import SplitId

__all__ = ["CONSUMER_MISSING", "ShardSubscriptions", "described"]

_log = logging.getLogger(__name__)

CONSUMER_MISSING: Final = "ResourceNotFoundException"
_TRANSIENT: Final = frozenset(("", CONSUMER_MISSING, INTEGRITY_PROBLEM))
"""An end with one of these codes fails no query, even if the query may not poll."""

_SUBSCRIBE_RETRY: Final = 10.0
"""Seconds from the end of a subscription that the service ended or refused to the next one."""
_LONG_RETRY: Final = 300.0
"""Seconds to the next subscription after an end with a lasting reason. Either another reader has taken over
the shard, and the two would take it from each other again and again; or records are about to expire.
"""


class ShardSubscriptions:
    """The requested subscriptions, one for each shard.

    Not thread-safe: the caller holds the lock of the `AgentClient`.

    Args:
        send: sends a message to the agent, if one runs.
        clock: monotonic seconds.
        may_poll: whether a shard may be polled for as long as the service refuses subscriptions.

    Attributes:
        shards: the last subscription of each shard, even if it has ended. Only this class changes them.
    """

    def __init__(
        self,
        send: Callable[[ToAgent], object],
        clock: Callable[[], float],
        *,
        may_poll: bool,
    ) -> None:
        self.shards: dict[SplitId, ShardSubscription] = {}
        self._send = send
        self._clock = clock
        self._may_poll = may_poll
        self._generation = 0

    @property
    def open(self) -> Sequence[ShardSubscription]:
        """Those that have not ended."""
        return [shard for shard in self.shards.values() if shard.ended is None]

    def find(self, split: SplitId, generation: int) -> ShardSubscription | None:
        """The subscription that a message is about; None if a later one has taken its place."""
        shard = self.shards.get(split)
        return None if shard is None or shard.generation != generation else shard

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """See `Subscriptions.follow`.

        Raises:
            ServiceError: the service refuses a subscription for good, and polling is forbidden.
        """
        for split in [split for split in self.shards if split not in positions]:
            del self.shards[split]
            self._send(Unsubscribe(split))
        for split, position in positions.items():
            self._follow(split, position)

    def record_end(
        self, shard: ShardSubscription, ended: SubscriptionEnded, *, takes_back: bool = False
    ) -> float:
        """Records that a subscription has ended; returns the seconds until another one may follow.

        Args:
            takes_back: another reader took over, and should learn of this one.
        """
        if ended.code in (TAKEN_OVER, INTEGRITY_PROBLEM) and not takes_back:
            retry_after = _LONG_RETRY
        elif ended.code:
            retry_after = _SUBSCRIBE_RETRY
        else:
            retry_after = 0.0  # the service did not end it
        shard.record_end(ended, retry_after=retry_after)
        return retry_after

    def retry_now(self, stream: str) -> None:
        """The stream has another consumer: subscriptions that have ended may follow at once."""
        for split, shard in self.shards.items():
            if split.stream == stream:
                shard.retry_now()

    def forget(self) -> None:
        """Drops all subscriptions, because the agent has ended."""
        self.shards = {}

    def _follow(self, split: SplitId, position: Position) -> None:
        shard = self.shards.get(split)
        if shard is None:
            self._subscribe(split, position)
        elif shard.ended is not None:
            self._check_may_poll(shard.ended)
            if shard.may_retry:
                self._subscribe(split, position)
        elif shard.is_left_behind(position):
            _log.info(
                "%s: the agent is behind records that were read without it; it resumes at %s",
                split,
                described(position),
            )
            self._subscribe(split, position)
        elif shard.position is not position and shard.position != position:  # mostly it is the same object
            if not shard.reaches(position):
                self._subscribe(split, position)
            elif (number := shard.advance_to(position)) is not None:
                self._send(Acknowledge(split, str(number)))

    def _subscribe(self, split: SplitId, position: Position) -> None:
        self._generation += 1
        self.shards[split] = ShardSubscription(self._generation, position, self._clock)
        self._send(Subscribe(split, self._generation, iterator_start(position)))

    def _check_may_poll(self, ended: SubscriptionEnded) -> None:
        if ended.code not in _TRANSIENT and not self._may_poll:
            raise ServiceError(
                f"{ended.reason}; {ended.split} is not polled instead, since option "
                "'subscribeToShardFallback' is 'fail'",
                operation="SubscribeToShard",
                target=str(ended.split),
                code=ended.code,
                retryable=ended.retryable,
            )


def described(position: Position) -> str:
    if isinstance(position, After):
        return f"sequence number {position.number}"
    return iso_instant(position.instant) if isinstance(position, AtTime) else "TRIM_HORIZON"
