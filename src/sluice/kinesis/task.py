"""Reads the ranges of a task, by polling or by fan-out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from sluice.kinesis.client import KinesisLog
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.task.agent_start import start_agent_here
from sluice.kinesis.fanout.task.publishers import (
    AgentRecordPublisher,
    SubscriptionRecordPublisher,
    is_reachable,
)
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.record_batches import to_record_batches
from sluice.retry import Retrier
from sluice.source.cursor import Cursor
from sluice.source.data_loss import DataLossPolicy
from sluice.source.fetcher import fetch_side_by_side
from sluice.source.offsets import Position, SplitRange
from sluice.source.publisher import PublisherCursor, RecordPublisher
from sluice.source.reader import OpenCursor, RangeReader, ReadSettings
from sluice.source.stream_log import AnyRecord

__all__ = ["read_ranges"]

_PATIENCE = 2.0
"""Seconds a task waits for an agent that has no news, before it reads on by polling."""
_FORBEARANCE = 120.0
"""The same where it may not poll."""

_log = logging.getLogger(__name__)


def read_ranges(
    config: SourceConfig, ranges: Sequence[SplitRange], access: FanOutAssignment | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads ranges side by side, as a task does; the rows of each range in order.

    Args:
        access: how to read by fan-out; None for polling. The rows are the same.

    Raises:
        DataLossError: records of a range are gone and data loss is to fail.
        ServiceError: a call failed for good; the message names stream, shard, operation and cause.
    """

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        log = KinesisLog.of(config, retrier=Retrier(sleep=pause), is_endpoint_known=True)
        data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)
        settings = ReadSettings(config.polling.records_limit, config.polling.interval, pause)
        open_cursor = None if access is None else _push(config, access, log, data_loss)
        return RangeReader(log, data_loss, settings, open_cursor).read(split_range)

    if access is not None and config.fan_out is not None and config.fan_out.agent == "workers":
        start_agent_here(config, config.fan_out, access)
    # What an agent has buffered is there at once; everything else has to be waited for.
    held = {} if access is None else access.agents
    ordered = sorted(ranges, key=lambda split_range: split_range.split in held)
    at_once = 1 + sum(split_range.split not in held for split_range in ranges)
    pages = fetch_side_by_side(ordered, read, at_once=at_once)
    yield from to_record_batches(pages, unpack=config.deaggregate)


def _push(
    config: SourceConfig, access: FanOutAssignment, log: KinesisLog, data_loss: DataLossPolicy
) -> OpenCursor:
    """Opens cursors that read what is pushed, by the agent that has it or by a subscription of their own."""
    fan_out = config.fan_out
    assert fan_out is not None  # noqa: S101 - there is no access without

    def open_publisher(split_range: SplitRange, position: Position) -> RecordPublisher:
        agent = access.agents.get(split_range.split)
        if agent is not None:
            patience = _PATIENCE if fan_out.may_poll else _FORBEARANCE
            return AgentRecordPublisher(agent, split_range, position, max_wait=patience)
        arn = access.arns[split_range.split.stream]
        return SubscriptionRecordPublisher(config, lambda: arn, split_range, position)

    def open_cursor(split_range: SplitRange, position: Position) -> Cursor:
        # Who subscribes to a shard that an agent is about to hold takes it from the agent.
        is_held = fan_out.agent != "none" and access.is_streaming
        agent = access.agents.get(split_range.split)
        is_there = agent is not None and is_reachable(agent)
        if is_held and not is_there and fan_out.may_poll:
            return Cursor(log, data_loss, split_range.split, position)
        return PublisherCursor(
            log, data_loss, split_range, position, open_publisher, may_poll=fan_out.may_poll
        )

    return open_cursor
