"""How the planner reads the splits of a log: rarely, because tasks need to read them, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import StreamLog
from sluice.source.model.offsets import Expiry, Position
from sluice.source.model.splits import Split
from sluice.source.state.read_pace import ReadPace
from sluice.source.state.split_state import SplitState

__all__ = ["Probe", "ProbeSettings"]


@dataclass(frozen=True)
class ProbeSettings:
    """The read limits of the planner. Kinesis allows 5 reads a second of each shard, for all polling
    consumers together.

    Attributes:
        pause: sleeps for a number of seconds.
        clock: monotonic seconds.
        seconds_per_read: pause for each read until a split may be read again.
        burst: reads of one split in any second.
        first_burst: the same before the first batch, while no task can read.
        empty_pages_for: minimum seconds for which a plan continues reading among empty pages; the next
            plan continues from there. Any number of empty pages may come before records: only an answer
            at the tip, or at the end of the split, shows that no record follows.
    """

    pause: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    seconds_per_read: float = 1.0
    burst: int = 4
    first_burst: int = 5
    empty_pages_for: float = 5.0

    @property
    def read_together(self) -> float:
        """Seconds by which a split is read early if another one is due: then one batch has both."""
        return self.seconds_per_read / 4


class Probe:
    """Reads from the service, and stores the results in each split's `SplitState`.

    Args:
        data_loss: notified if records after a position are lost.

    Attributes:
        burst: reads of one split in any second.
    """

    def __init__(self, log: StreamLog, data_loss: DataLossPolicy, settings: ProbeSettings) -> None:
        self.log = log
        self.data_loss = data_loss
        self.settings = settings
        self.burst = settings.first_burst

    def expect_tasks(self) -> None:
        """Leaves tasks their share of the reads that the service allows."""
        self.burst = self.settings.burst

    def state(
        self, split: Split, position: Position, *, expiry: Expiry | None = None, reads: ReadPace | None = None
    ) -> SplitState:
        """Makes a state of a split, with its position and nothing read ahead.

        Args:
            expiry: which records of the stream have expired.
            reads: of an earlier state of the split.
        """
        return SplitState(split, position, self.cursor(split, position), expiry, reads=reads or ReadPace())

    def cursor(self, split: Split, position: Position) -> Cursor:
        """Makes a cursor that polls the split from `position` on."""
        return Cursor(self.log, self.data_loss, split.id, position)
