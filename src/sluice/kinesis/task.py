"""Reads ranges inside a task, by polling or by fan-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa

from sluice.kinesis.client import KinesisLog
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.task.agent_start import start_agent_here
from sluice.kinesis.fanout.task.publishers import (
    AgentRecordPublisher,
    SubscriptionRecordPublisher,
    is_reachable,
)
from sluice.kinesis.fanout_options import FanOutConfig
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.record_batches import to_record_batches
from sluice.retry import Retrier
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.fetcher import fetch_side_by_side
from sluice.source.offsets import Position, SplitRange
from sluice.source.publisher import PublisherCursor, RecordPublisher
from sluice.source.read_figures import ReadFigures
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.stream_log import AnyRecord

__all__ = ["read_ranges"]

_MAX_WAIT: Final = 2.0
"""Seconds without an event of the agent after which a task polls the rest of its range."""
_MAX_WAIT_WITHOUT_POLLING: Final = 120.0
"""Seconds without an event of the agent after which a task fails that may not poll."""


def read_ranges(
    config: SourceConfig,
    ranges: Sequence[SplitRange],
    assignment: FanOutAssignment | None = None,
    figures: ReadFigures | None = None,
) -> Iterator[pa.RecordBatch]:
    """Reads the ranges of a task side by side; the rows of each range come in order.

    Args:
        config: the options of the source.
        ranges: at most one per shard.
        assignment: how to read by fan-out, which gives the same rows as polling. None: poll.
        figures: get what was read.

    Raises:
        DataLossError: records of a range are gone, and ``failOnDataLoss`` is true.
        ServiceError: a call failed for good; the message names stream, shard, operation and cause.
    """
    fan_out: _FanOutCursors | None = None
    buffered_at_agents = frozenset[object]()
    if assignment is not None and config.fan_out is not None:
        fan_out = _FanOutCursors(config, config.fan_out, assignment)
        buffered_at_agents = frozenset(assignment.agents)
        if config.fan_out.agent == "workers":
            start_agent_here(config, config.fan_out, assignment)

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        return _create_reader(config, fan_out, split_range, pause, figures).read(split_range)

    # One thread reads what agents have buffered. Every other range is waited for in a thread of its own, so
    # these come first.
    ordered = sorted(ranges, key=lambda split_range: split_range.split in buffered_at_agents)
    at_once = 1 + sum(split_range.split not in buffered_at_agents for split_range in ranges)
    pages = fetch_side_by_side(ordered, read, at_once=at_once)
    yield from to_record_batches(pages, unpack=config.deaggregate)


def _create_reader(
    config: SourceConfig,
    fan_out: _FanOutCursors | None,
    split_range: SplitRange,
    pause: Callable[[float], None],
    figures: ReadFigures | None,
) -> RangeReader:
    log = KinesisLog.of(config, retrier=Retrier(sleep=pause), is_endpoint_known=True, figures=figures)
    expiry = {} if split_range.expiry is None else {split_range.split.stream: split_range.expiry}
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time, expiry)
    settings = ReadSettings(config.polling.records_limit, config.polling.interval, pause)
    open_cursor = None if fan_out is None else partial(fan_out.open, log, data_loss)
    return RangeReader(log, data_loss, settings, open_cursor, figures)


class _FanOutCursors:
    """Opens cursors over what the service pushes: from the agent that holds a shard's subscription, or from a
    subscription of the task's own."""

    def __init__(self, config: SourceConfig, fan_out: FanOutConfig, assignment: FanOutAssignment) -> None:
        self._config = config
        self._assignment = assignment
        self._may_poll = fan_out.may_poll
        self._agents_subscribe = fan_out.agent != "none" and assignment.is_streaming

    def open(
        self, log: KinesisLog, data_loss: DataLossPolicy, split_range: SplitRange, position: Position
    ) -> Cursor:
        agent = self._assignment.agents.get(split_range.split)
        has_agent = agent is not None and is_reachable(agent)
        if self._agents_subscribe and not has_agent and self._may_poll:
            # A subscription of the task's own would end that of an agent: a consumer has one per shard.
            return Cursor(log, data_loss, split_range.split, position)
        return PublisherCursor(
            log, data_loss, split_range, position, self._open_publisher, may_poll=self._may_poll
        )

    def _open_publisher(self, split_range: SplitRange, position: Position) -> RecordPublisher:
        agent = self._assignment.agents.get(split_range.split)
        if agent is not None:
            max_wait = _MAX_WAIT if self._may_poll else _MAX_WAIT_WITHOUT_POLLING
            return AgentRecordPublisher(agent, split_range, position, max_wait=max_wait)
        arn = self._assignment.arns[split_range.split.stream]
        return SubscriptionRecordPublisher(self._config, lambda: arn, split_range, position)
