"""Reads ranges inside a task, by polling or by fan-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.kinesis.client import KinesisLog
from sluice.kinesis.options import SourceConfig
from sluice.kinesis.record_batches import to_record_batches
from sluice.retry import Retrier
from sluice.source.data_loss import DataLossPolicy
from sluice.source.fetcher import fetch_side_by_side
from sluice.source.offsets import SplitRange
from sluice.source.read_figures import ReadFigures
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.stream_log import AnyRecord

if TYPE_CHECKING:  # a task that polls imports nothing of fan-out
    from sluice.kinesis.fanout.assignment import FanOutAssignment
    from sluice.kinesis.fanout_task import FanOutCursors

__all__ = ["read_ranges"]


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
    fan_out: FanOutCursors | None = None
    buffered_at_agents = frozenset[object]()
    if assignment is not None and config.fan_out is not None:
        from sluice.kinesis.fanout_task import FanOutCursors, start_agent_if_wanted  # noqa: PLC0415 - see above

        fan_out = FanOutCursors(config, config.fan_out, assignment)
        buffered_at_agents = frozenset(assignment.agents)
        start_agent_if_wanted(config, config.fan_out, assignment)

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
    fan_out: FanOutCursors | None,
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
