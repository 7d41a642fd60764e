"""Reads ranges from agents, or by fan-out, inside a task."""

from __future__ import annotations

from typing import Final

from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.task.publishers import (
    AgentRecordPublisher,
    SubscriptionRecordPublisher,
    is_reachable,
)
from sluice.source.contracts import ReadTask
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import StreamLog
from sluice.source.model.offsets import Position, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.reading.publisher import PublisherCursor, RecordPublisher

__all__ = ["FanOutCursors"]

_MAX_WAIT: Final = 2.0
"""Seconds without an event of the agent after which a task polls the rest of its range."""
_MAX_WAIT_WITHOUT_POLLING: Final = 120.0
"""The same if a task may not poll: then it fails."""


class FanOutCursors:
    """Opens cursors that need not poll: they read from the agent that subscribes to a shard or polls it, or
    from the task's own subscription.

    Args:
        task: whose ranges they read. It learns which consumers another reader has taken over.
    """

    def __init__(self, config: SourceConfig, assignment: FanOutAssignment, task: ReadTask) -> None:
        self._config = config
        self._figures = task.figures
        self._assignment = assignment
        self._may_poll = config.fan_out is None or config.fan_out.may_poll
        # The task's own subscription would end that of an agent, or that of the task's first attempt, which
        # may still run, because a consumer has one per shard.
        self._has_other_reader = task.is_repeated or (config.agent is not None and assignment.is_streaming)

    def is_buffered(self, split: SplitId) -> bool:
        """Whether an agent has buffered the records of this split."""
        return split in self._assignment.agents

    def open(
        self, log: StreamLog, data_loss: DataLossPolicy, split_range: SplitRange, position: Position
    ) -> Cursor:
        agent = self._assignment.agents.get(split_range.split)
        has_agent = agent is not None and is_reachable(agent, self._assignment.recoveries)
        if self._has_other_reader and not has_agent and self._may_poll:
            return Cursor(log, data_loss, split_range.split, position)
        return PublisherCursor(
            log, data_loss, split_range, position, self._open_publisher, may_poll=self._may_poll
        )

    def _open_publisher(self, split_range: SplitRange, position: Position) -> RecordPublisher:
        agent = self._assignment.agents.get(split_range.split)
        if agent is not None:
            max_wait = _MAX_WAIT if self._may_poll else _MAX_WAIT_WITHOUT_POLLING
            return AgentRecordPublisher(
                agent, split_range, position, max_wait=max_wait, recoveries=self._assignment.recoveries
            )
        arn = self._assignment.arns[split_range.split.stream]
        return SubscriptionRecordPublisher(
            self._config,
            arn,
            split_range,
            position,
            on_taken_over=lambda: self._figures.mark_contested([arn]),
        )
