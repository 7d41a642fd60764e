"""Puts the parts of the source together: what plans beside the driver, what reads inside a task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from sluice.errors import OptionError
from sluice.kinesis.access import FanOutAccess
from sluice.kinesis.client import KinesisLog
from sluice.kinesis.consumers import Consumers
from sluice.kinesis.fanout.feeds import AgentFeed, SubscriptionFeed, is_reachable
from sluice.kinesis.fanout.hosts import start_agent_here
from sluice.kinesis.options import STARTING, SourceConfig
from sluice.kinesis.rows import to_record_batches
from sluice.kinesis.starting import AtTimestamp, Latest, PerShard, StartingPosition
from sluice.retry import Retrying
from sluice.source.cursor import Cursor
from sluice.source.enumerator import EnumeratorSettings, InitialPositions, StreamEnumerator
from sluice.source.feed import FeedCursor
from sluice.source.fetcher import fetch_side_by_side
from sluice.source.frontier import Frontier
from sluice.source.log import AnyRecord, Feed
from sluice.source.loss import LossGuard
from sluice.source.offsets import HORIZON, After, AtTime, Position, SplitRange, before
from sluice.source.planner import Planner
from sluice.source.probe import Probe, ProbeSettings
from sluice.source.reader import OpenCursor, RangeReader, ReadSettings
from sluice.source.splits import Split, SplitId

__all__ = ["bounded_access", "initial_positions", "make_enumerator", "plan_bounded_read", "read_ranges"]

_SECOND = 1_000_000
_PATIENCE = 2.0
"""Seconds a task waits for an agent that has no news, before it reads on by polling."""
_FORBEARANCE = 120.0
"""The same where it may not poll."""

_log = logging.getLogger(__name__)


def make_enumerator(config: SourceConfig, *, frontier: Frontier | None = None) -> StreamEnumerator:
    """What finds shards and plans batches, for the process beside the driver.

    Args:
        frontier: knows what is pushed; without it everything is probed.
    """
    log = KinesisLog.of(config)
    guard = LossGuard(log, config.fail_on_data_loss, log.server_time)
    probe = Probe(log, guard, ProbeSettings(pause=time.sleep))
    settings = EnumeratorSettings(
        [stream.name for stream in config.streams],
        initial_positions(config.start),
        config.shard_discovery_interval,
    )
    planner = Planner(probe, log.server_time, fail_on_missing=config.fail_on_data_loss)
    return StreamEnumerator(log, settings, guard, probe, planner, frontier=frontier)


def plan_bounded_read(config: SourceConfig) -> Sequence[SplitRange]:
    """The ranges of a batch read: everything from the starting to the ending positions as of now.

    Raises:
        SluiceError: what `StreamEnumerator.bounded` raises.
    """
    if isinstance(config.start, Latest):
        _log.warning("a batch read from LATEST finds next to nothing: see option '%s'", STARTING.key)
    enumerator = make_enumerator(config)
    try:
        return enumerator.bounded(config.end.instant if isinstance(config.end, AtTimestamp) else None)
    finally:
        enumerator.close()


def bounded_access(config: SourceConfig) -> FanOutAccess | None:
    """How the tasks of a batch read may read by fan-out; None where they poll.

    Raises:
        SluiceError: a consumer can't be had.
    """
    if config.fan_out is None:
        return None
    consumers = Consumers(config)
    found = {stream.name: consumers.ensure(stream.name) for stream in config.streams}
    for stream, consumer in found.items():
        if consumer.registered or config.fan_out.registered.get(stream) == consumer.arn:
            # Nobody says when the last task has read: then it could be deregistered.
            _log.warning("consumer %s was registered for a batch read, and stays registered", consumer.arn)
    return FanOutAccess({stream: consumer.arn for stream, consumer in found.items()}, is_streaming=False)


def read_ranges(
    config: SourceConfig, ranges: Sequence[SplitRange], access: FanOutAccess | None = None
) -> Iterator[pa.RecordBatch]:
    """Reads ranges side by side, as a task does; the rows of each range in order.

    Args:
        access: how to read by fan-out; None for polling. The rows are the same.

    Raises:
        DataLossError: records of a range are gone and data loss is to fail.
        ServiceError: a call failed for good; the message names stream, shard, operation and cause.
    """

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        log = KinesisLog.of(config, retrying=Retrying(sleep=pause), is_known=True)
        guard = LossGuard(log, config.fail_on_data_loss, log.server_time)
        settings = ReadSettings(config.polling.records_limit, config.polling.interval, pause)
        open_cursor = None if access is None else _push(config, access, log, guard)
        return RangeReader(log, guard, settings, open_cursor).read(split_range)

    if access is not None and config.fan_out is not None and config.fan_out.agent == "workers":
        start_agent_here(config, access)
    # What an agent has buffered is there at once; everything else has to be waited for.
    held = {} if access is None else access.agents
    ordered = sorted(ranges, key=lambda split_range: split_range.split in held)
    at_once = 1 + sum(split_range.split not in held for split_range in ranges)
    pages = fetch_side_by_side(ordered, read, at_once=at_once)
    yield from to_record_batches(pages, unpack=config.deaggregate)


def _push(config: SourceConfig, access: FanOutAccess, log: KinesisLog, guard: LossGuard) -> OpenCursor:
    """Opens cursors that read what is pushed, by the agent that has it or by a subscription of their own."""
    fan_out = config.fan_out
    assert fan_out is not None  # noqa: S101 - there is no access without

    def open_feed(split_range: SplitRange, position: Position) -> Feed:
        agent = access.agents.get(split_range.split)
        if agent is not None:
            patience = _PATIENCE if fan_out.may_poll else _FORBEARANCE
            return AgentFeed(agent, split_range, position, patience=patience)
        arn = access.arns[split_range.split.stream]
        return SubscriptionFeed(config, lambda: arn, split_range, position)

    def open_cursor(split_range: SplitRange, position: Position) -> Cursor:
        # Who subscribes to a shard that an agent is about to hold takes it from the agent.
        is_held = fan_out.agent != "none" and access.is_streaming
        agent = access.agents.get(split_range.split)
        is_there = agent is not None and is_reachable(agent)
        if is_held and not is_there and fan_out.may_poll:
            return Cursor(log, guard, split_range.split, position)
        return FeedCursor(log, guard, split_range, position, open_feed, may_poll=fan_out.may_poll)

    return open_cursor


def initial_positions(start: StartingPosition) -> InitialPositions:
    """Pins starting positions to the splits there are."""

    def pin(splits: Iterable[Split], now: int) -> Mapping[SplitId, Position]:
        if isinstance(start, PerShard):
            return _pin_shards(start, splits)
        position: Position = HORIZON
        if isinstance(start, Latest):
            # Some services stamp arrivals with whole seconds: what comes next must not seem older.
            position = AtTime(now // _SECOND * _SECOND, pinned=now)
        elif isinstance(start, AtTimestamp):
            # The service refuses to look into the future, and nothing is there yet.
            position = AtTime(min(start.instant, now), pinned=now)
        return {split.id: position for split in splits}

    return pin


def _pin_shards(start: PerShard, splits: Iterable[Split]) -> Mapping[SplitId, Position]:
    ids = [split.id for split in splits]
    unknown = sorted(set(start.positions) - set(ids))
    if unknown:
        shown = ", ".join(sorted(split.shard for split in ids if split.stream == unknown[0].stream)[:20])
        raise OptionError(
            f"option '{STARTING.key}' names shard '{unknown[0].shard}', which stream '{unknown[0].stream}' "
            f"does not have: its shards are {shown}"
        )
    positions: dict[SplitId, Position] = {}
    for split in ids:
        given = start.positions.get(split)
        number = "0" if given is None else given.sequence_number or "0"
        if given is None or int(number) == 0:
            positions[split] = HORIZON  # "0" is before all numbers there are
        elif given.kind == "AFTER_SEQUENCE_NUMBER":
            positions[split] = After(number)
        else:
            positions[split] = before(number)
    return positions
