"""Which cursor a task reads a range with."""

from __future__ import annotations

import pytest

from sluice.channels.channel import Address
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.task import cursors as fanout_task
from sluice.source.contracts import ReadTask
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.reading.publisher import PublisherCursor

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/clicks/consumer/app:1"
SPLIT = SplitId("clicks", "shardId-000000000000")
AGENT = Address("127.0.0.1", 7, b"secret", b"start")


@pytest.mark.parametrize(
    ("options", "is_streaming", "agent", "expected"),
    [
        pytest.param({}, True, "reachable", PublisherCursor, id="the agent has a subscription"),
        pytest.param({}, True, None, Cursor, id="the agent will subscribe"),
        pytest.param({}, True, "unreachable", Cursor, id="this host does not reach the agent"),
        pytest.param({"subscribeToShardFallback": "fail"}, True, None, PublisherCursor, id="may not poll"),
        pytest.param({"agent": "none"}, True, None, PublisherCursor, id="no agents"),
        pytest.param({}, False, None, PublisherCursor, id="a batch read has no agents"),
    ],
)
def test_a_task_subscribes_only_where_no_agent_does(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    is_streaming: bool,
    agent: str | None,
    expected: type[Cursor],
) -> None:
    """A shard has one subscription per consumer: a task's would end the agent's, so the task polls."""
    monkeypatch.setattr(fanout_task, "is_reachable", lambda _address, _recoveries: agent == "reachable")
    base = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    config = source_config_from_options(base | options)
    agents = {} if agent is None else {SPLIT: AGENT}
    assignment = FanOutAssignment({"clicks": ARN}, agents, is_streaming=is_streaming)
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)

    cursors = fanout_task.FanOutCursors(config, assignment, ReadTask(()))
    cursor = cursors.open(log, data_loss, SplitRange(SPLIT, HORIZON, Closed()), HORIZON)

    assert type(cursor) is expected


@pytest.mark.parametrize(
    ("options", "is_streaming", "agent", "expected"),
    [
        pytest.param({"agent": "none"}, True, None, Cursor, id="no agents"),
        pytest.param({}, False, None, Cursor, id="a batch read"),
        pytest.param({}, True, "reachable", PublisherCursor, id="an agent has it"),
        pytest.param(
            {"agent": "none", "subscribeToShardFallback": "fail"},
            True,
            None,
            PublisherCursor,
            id="may not poll",
        ),
    ],
)
def test_a_second_attempt_does_not_take_the_shard_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    is_streaming: bool,
    agent: str | None,
    expected: type[Cursor],
) -> None:
    """With speculation both run, and the first would report another reader of the consumer."""
    monkeypatch.setattr(fanout_task, "is_reachable", lambda _address, _recoveries: True)
    base = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    config = source_config_from_options(base | options)
    assignment = FanOutAssignment(
        {"clicks": ARN}, {} if agent is None else {SPLIT: AGENT}, is_streaming=is_streaming
    )
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)

    cursors = fanout_task.FanOutCursors(config, assignment, ReadTask((), is_repeated=True))

    assert type(cursors.open(log, data_loss, SplitRange(SPLIT, HORIZON, Closed()), HORIZON)) is expected


@pytest.mark.parametrize(
    ("agent", "expected"), [("reachable", PublisherCursor), ("unreachable", Cursor), (None, Cursor)]
)
def test_a_task_polls_what_no_agent_polls_for_it(
    monkeypatch: pytest.MonkeyPatch, agent: str | None, expected: type[Cursor]
) -> None:
    """Nor where this host does not reach the agent."""
    monkeypatch.setattr(fanout_task, "is_reachable", lambda _address, _recoveries: agent == "reachable")
    options = {"streamName": "clicks", "region": "us-east-1", "agent": "driver"}
    config = source_config_from_options(options)
    assignment = FanOutAssignment({}, {} if agent is None else {SPLIT: AGENT})
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.fail_on_data_loss, log.server_time)

    cursors = fanout_task.FanOutCursors(config, assignment, ReadTask(()))

    assert type(cursors.open(log, data_loss, SplitRange(SPLIT, HORIZON, Closed()), HORIZON)) is expected
