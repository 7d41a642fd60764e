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


FAN_OUT = {"consumerName": "app"}
MAY_NOT_POLL = {"subscribeToShardFallback": "fail"}


@pytest.mark.parametrize(
    ("options", "agent", "expected"),
    [
        pytest.param(FAN_OUT, "reachable", PublisherCursor, id="the agent has a subscription"),
        pytest.param(FAN_OUT, None, Cursor, id="the agent will subscribe"),
        pytest.param(FAN_OUT, "unreachable", Cursor, id="this host does not reach the agent"),
        pytest.param(FAN_OUT | MAY_NOT_POLL, None, PublisherCursor, id="may not poll"),
        pytest.param(FAN_OUT | {"agent": "none"}, None, PublisherCursor, id="no agents"),
        pytest.param(FAN_OUT | {"batch": ""}, None, PublisherCursor, id="a batch read has no agents"),
        pytest.param({"agent": "driver"}, "reachable", PublisherCursor, id="an agent polls it"),
        pytest.param({"agent": "driver"}, "unreachable", Cursor, id="this host does not reach the poller"),
        pytest.param({"agent": "driver"}, None, Cursor, id="no agent polls it"),
        # With speculation both attempts run, and the first would report another reader of the consumer.
        pytest.param(FAN_OUT | {"agent": "none", "again": ""}, None, Cursor, id="a second attempt"),
        pytest.param(FAN_OUT | {"batch": "", "again": ""}, None, Cursor, id="a second one, batch read"),
        pytest.param(
            FAN_OUT | {"again": ""}, "reachable", PublisherCursor, id="a second one, an agent has it"
        ),
        pytest.param(
            FAN_OUT | MAY_NOT_POLL | {"agent": "none", "again": ""},
            None,
            PublisherCursor,
            id="a second one that may not poll",
        ),
    ],
)
def test_a_task_subscribes_only_where_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], agent: str | None, expected: type[Cursor]
) -> None:
    """A shard has one subscription per consumer: a task's would end that of the agent, or of its twin."""
    monkeypatch.setattr(fanout_task, "is_reachable", lambda _address, _recoveries: agent == "reachable")
    given = {"streamName": "clicks", "region": "us-east-1", **options}
    is_repeated, is_batch = given.pop("again", None) is not None, given.pop("batch", None) is not None
    config = source_config_from_options(given)
    agents = {} if agent is None else {SPLIT: AGENT}
    arns = {} if config.fan_out is None else {"clicks": ARN}
    assignment = FanOutAssignment(arns, agents, is_streaming=not is_batch)
    log = KinesisLog.of(config)
    data_loss = DataLossPolicy(log, config.settings.fail_on_data_loss, log.server_time)

    cursors = fanout_task.FanOutCursors(config, assignment, ReadTask((), is_repeated=is_repeated))
    cursor = cursors.open(log, data_loss, SplitRange(SPLIT, HORIZON, Closed()), HORIZON)

    assert type(cursor) is expected
