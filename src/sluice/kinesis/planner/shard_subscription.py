"""The planner's knowledge of an agent's subscription to one shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sluice.kinesis.shared.coverage import Coverage, exclusive_start
from sluice.kinesis.shared.protocol import EventReceived, Server, SubscriptionEnded
from sluice.source.logs.cursor import iterator_start
from sluice.source.model.offsets import After, Position
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress

__all__ = ["ShardSubscription"]

_LEFT_BEHIND_AFTER: Final = 10.0
"""Seconds for which a subscription may bring only records that polling has already read."""
_SILENT_AFTER: Final = 10.0
"""After this many seconds without an event, a subscription counts as silent. Even a shard without records
sends an event every 5 s, so two are missing.
"""


class ShardSubscription:
    """One subscription to a shard: the agent's order, and its reports.

    Its states are *requested* (until the first event), *open*, and *ended*. Then `ended` has the reason, and
    `may_retry` tells whether another subscription may follow: a new object, with the next generation.

    Not thread-safe: the caller holds the lock of the `AgentClient`. No other code writes its fields.

    Args:
        generation: distinguishes its messages from messages of earlier subscriptions.
        position: where it starts.
        clock: monotonic seconds.

    Attributes:
        position: where the next batch starts.
        ended: the agent's message that the subscription has ended.
    """

    def __init__(self, generation: int, position: Position, clock: Callable[[], float]) -> None:
        self.generation = generation
        self.position = position
        self.ended: SubscriptionEnded | None = None
        self._clock = clock
        self._coverage = Coverage(iterator_start(position))
        self._acknowledged = -1
        self._cut_points: list[CutPoint] = []
        self._last_event: EventReceived | None = None
        self._heard_at = clock()
        self._retry_at = 0.0
        self._left_behind_since: float | None = None
        # Between events the planner asks for the same progress a hundred times a second.
        self._progress: SubscriptionProgress | None = None
        self._progress_of: Position | None = None

    # --- what happens to it ---------------------------------------------------------------------------

    def record_event(self, event: EventReceived) -> bool:
        """Records an event that the agent has received. Returns: Whether it has more news than that the shard
        is still at its tip.
        """
        earlier, progress = self._last_event, event.progress
        was_at_tip = earlier is not None and earlier.progress.is_at_tip
        if event.first is not None:
            self._coverage.record_first(event.first)
        self._last_event = event
        self._heard_at = self._clock()
        self._cut_points.extend(progress.cut_points)
        self._progress = None
        return bool(progress.cut_points) or not (was_at_tip and progress.is_at_tip)

    def record_end(self, ended: SubscriptionEnded, *, retry_after: float) -> None:
        """Records the end of the subscription; another one may follow in `retry_after` seconds."""
        self.ended = ended
        self._cut_points = []
        self._retry_at = self._clock() + retry_after

    def retry_now(self) -> None:
        """The reason for the end has passed: another subscription may follow at once."""
        self._retry_at = 0.0

    def advance_to(self, position: Position) -> int | None:
        """The next batch starts at `position`, which the subscription has to reach (`reaches`).

        Returns:
            The sequence number up to which the agent may drop records; None if it knows the number already.
        """
        self.position = position
        self._progress = None
        after = exclusive_start(position)
        if after is None or after <= self._acknowledged:
            return None
        self._acknowledged = after
        self._coverage.discard(after)
        passed = _passed(position)
        self._cut_points = [point for point in self._cut_points if point.sequence > passed]
        return after

    # --- what is known of it --------------------------------------------------------------------------

    @property
    def server(self) -> Server | None:
        """The agent that has its records; None before the first event."""
        return None if self._last_event is None else self._last_event.server

    @property
    def has_new_records(self) -> bool:
        """Whether it has brought records after `position`."""
        return bool(self._cut_points) and self._cut_points[-1].sequence > _passed(self.position)

    @property
    def is_silent(self) -> bool:
        """Whether it has brought nothing for 10 s: the agent has lost the connection and gets no other one,
        has not got one yet, or waits for space in its buffer.

        No event follows the end of a shard, which stays true.
        """
        event = self._last_event
        has_ended = event is not None and event.progress.has_ended
        return not has_ended and self._clock() - self._heard_at >= _SILENT_AFTER

    @property
    def may_retry(self) -> bool:
        """Whether another subscription may follow now, after this one has ended."""
        return self._clock() >= self._retry_at

    def reaches(self, position: Position) -> bool:
        """Whether it delivers all records after `position`, as far as known. Positions only move forward, so
        it reaches all positions after its start. Probes may have found these before the subscription
        delivered any record.
        """
        after = exclusive_start(position)
        if self._coverage.covers(iterator_start(position), after):
            return True
        before = exclusive_start(self.position)
        return after is not None and (before is None or after >= before)

    def is_left_behind(self, position: Position) -> bool:
        """Whether it has had a backlog for 10 s that polling has already read.

        Then another subscription, from `position` on, gets to new records sooner.
        """
        event = self._last_event
        if (
            event is None
            or event.progress.millis_behind == 0
            or self.position != position
            or self.has_new_records
        ):
            self._left_behind_since = None
            return False
        now = self._clock()
        if self._left_behind_since is None:
            self._left_behind_since = now
        return now - self._left_behind_since >= _LEFT_BEHIND_AFTER

    def progress(self, position: Position) -> SubscriptionProgress | None:
        """See `Subscriptions.progress`. None for a silent subscription without new records."""
        if self._last_event is None or self.ended is not None:
            return None
        # An uncovered position is checked again: equal positions may differ in `After.next`, and a position
        # that has it may be covered while the other is not.
        if self._progress is None or self._progress_of != position:
            self._progress = self._progress_behind(self._last_event.progress, position)
            self._progress_of = position
        if self._progress is not None and not self._progress.cut_points and self.is_silent:
            return None
        return self._progress

    def _progress_behind(self, last: SubscriptionProgress, position: Position) -> SubscriptionProgress | None:
        is_next = position == self.position and not self._coverage.knows_first
        if not (is_next or self._coverage.covers(iterator_start(position), exclusive_start(position))):
            return None
        passed = _passed(position)
        cut_points = self._cut_points
        if cut_points and cut_points[0].sequence <= passed:
            cut_points = [point for point in cut_points if point.sequence > passed]
        return replace(last, cut_points=tuple(cut_points))


def _passed(position: Position) -> int:
    """The highest sequence number at which no batch ends any more."""
    return position.sequence if isinstance(position, After) else -1
