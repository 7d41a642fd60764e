"""Starts a polling agent once the first batch is planned, and only in a query that keeps running."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from sluice.source.model.offsets import Position
from sluice.source.model.splits import SplitId
from sluice.source.state.subscriptions import SubscriptionProgress, Subscriptions

__all__ = ["NearTip"]

_START_AFTER: Final = 1.0
"""Seconds from the first trigger to the trigger that starts the agent. Until then the planner may need all
reads that the service allows. Before Spark 4.2 a source does not know that a run uses
``Trigger.AvailableNow``; but such a run has only one trigger.
"""


class NearTip:
    """The `Subscriptions` of a polling query: none at first, and none with ``Trigger.AvailableNow``.

    Args:
        agent: starts with its first `follow`. expect_reads: called before the agent may read, because it
            takes a part of the reads that the service allows.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        agent: Subscriptions,
        expect_reads: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agent = agent
        self._expect_reads = expect_reads
        self._clock = clock
        self._first_at: float | None = None
        self._is_off = False

    def turn_off(self) -> None:
        """The run ends at the available data, which is read without an agent."""
        self._is_off = True

    @property
    def version(self) -> int:
        """See `Subscriptions.version`."""
        return self._agent.version

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        """See `Subscriptions.follow`."""
        if self._is_off:
            return
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
        if now - self._first_at >= _START_AFTER:
            self._expect_reads()
            self._agent.follow(positions)

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        """See `Subscriptions.progress`."""
        return None if self._is_off else self._agent.progress(split, position)

    def close(self) -> None:
        """See `Subscriptions.close`."""
        self._agent.close()
