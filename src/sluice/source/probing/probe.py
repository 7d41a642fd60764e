"""How the planner reaches the splits of a log, and how rarely it reads each, so that tasks can read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import Page, StreamLog
from sluice.source.model.offsets import Expiry, Position
from sluice.source.model.splits import Split, SplitId
from sluice.source.probing.read_pace import ReadPace
from sluice.source.state.split_state import SplitState

__all__ = ["Probe", "ProbeSettings"]

_KEPT_PACES = 10_000
"""Splits whose reads are remembered. Beyond this, splits that need not wait for a read are forgotten."""


@dataclass(frozen=True)
class ProbeSettings:
    """How rarely the planner reads, so that tasks can. Kinesis allows 5 reads a second of each shard, for all
    polling consumers together.

    Attributes:
        pause: sleeps for a number of seconds.
        clock: monotonic seconds. Reads are paced by it, because a wall clock may be set back.
        seconds_per_read: until a split may be read again, for each read of it.
        burst: reads of one split in any second.
        first_burst: the same before the first batch, while no task can read.
        throttled_pause: pause before a throttled read of a split is repeated that a plan waits for (seconds).
    """

    pause: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    seconds_per_read: float = 1.0
    burst: int = 4
    first_burst: int = 5
    throttled_pause: float = 0.5


class Probe:
    """Asks the service about splits. What it learns goes into their `SplitState`.

    Args:
        log: the service.
        data_loss: told when records after a position are gone.
        settings: how many reads a split may cost.
    """

    def __init__(self, log: StreamLog, data_loss: DataLossPolicy, settings: ProbeSettings) -> None:
        self.log = log
        self.data_loss = data_loss
        self.settings = settings
        self._paces: dict[SplitId, ReadPace] = {}
        self._is_alone = True

    def expect_tasks(self) -> None:
        """From now on tasks may read, and get their part of the reads that the service allows."""
        self._is_alone = False

    def pace(self, split: SplitId, *, for_bytes: bool = False) -> None:
        """Waits until a split may be read once more. One thread a split.

        Args:
            for_bytes: wait as well until what was read has been paid for, which may take 5 s.
        """
        clock, pace = self.settings.clock, self._pace_of(split)
        burst = self.settings.first_burst if self._is_alone else self.settings.burst
        wait = pace.wait_for_calls(clock(), burst)
        if for_bytes:
            wait = max(wait, pace.wait_for_bytes(clock()))
        if wait > 0:
            self.settings.pause(wait)

    def record_read(self, split: SplitId, page: Page | None) -> None:
        """A read was answered: with a page, or (None) with an error."""
        self._pace_of(split).record_read(page, self.settings.clock())

    def _pace_of(self, split: SplitId) -> ReadPace:
        pace = self._paces.get(split)
        if pace is None:
            if len(self._paces) > _KEPT_PACES:
                now = self.settings.clock()
                for other, known in list(self._paces.items()):
                    if known.is_forgettable(now):
                        self._paces.pop(other, None)  # another thread may be forgetting as well
            pace = self._paces[split] = ReadPace(self.settings.first_burst)
        return pace

    def state(self, split: Split, position: Position, *, expiry: Expiry | None = None) -> SplitState:
        """The state of a split before anything but its position is known.

        Args:
            expiry: which records of the stream have expired.
        """
        return SplitState(split, position, self.cursor(split, position), expiry)

    def cursor(self, split: Split, position: Position) -> Cursor:
        """A cursor that polls the split from `position` on."""
        return Cursor(self.log, self.data_loss, split.id, position)
