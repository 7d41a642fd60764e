"""How the parts of an agent are put together."""

from __future__ import annotations

import contextlib
import io
import pickle
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest

from sluice.channels.channel import Address, Channel
from sluice.channels.processes import child_environment
from sluice.errors import ServiceError
from sluice.kinesis.agent import agent as agent_module
from sluice.kinesis.agent.agent import Agent, _start
from sluice.kinesis.agent.buffer_budget import BufferBudget
from sluice.kinesis.agent.poller import Poller
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_place import place_agent
from sluice.kinesis.shared.launch import ON_THIS_HOST, AgentSetup, WorkerAgentSetup
from sluice.kinesis.shared.link import Link
from sluice.kinesis.shared.protocol import (
    TAKEN_OVER,
    BufferHeld,
    CallsCounted,
    ConsumersChanged,
    RangesAsked,
    ReadRange,
    StartFailed,
    SubscriptionEnded,
    decode_from_agent,
)
from sluice.kinesis.subscriptions.subscription import Subscribing
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId
from sluice.spark_settings import SparkSettings

LOCAL = SparkSettings("local[2]", cores=2)
START = IteratorStart("TRIM_HORIZON")
OLD, NEW = (f"arn:aws:kinesis:us-east-1:000000000000:stream/clicks/consumer/app:{at}" for at in (1, 2))


@pytest.fixture
def agent() -> Iterator[Agent]:
    config = source_config_from_options(
        {"streamName": "clicks", "region": "us-east-1", "consumerName": "app", "agentBufferSize": "5MiB"},
        streaming=True,
    )
    assert config.agent is not None
    ours, theirs = socket.socketpair()
    made = Agent(AgentSetup.beside_driver(config), Link(Channel(ours)), assigns_to_workers=False)
    theirs.close()
    made.serve()  # the link is closed already
    yield made
    ours.close()


def test_an_agent_says_how_many_ranges_it_was_asked_for(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since the last time, whether it could serve them or not; nothing where it was not asked."""
    reported: list[object] = []
    monkeypatch.setattr(agent, "report", reported.append)
    request = ReadRange(SplitId("clicks", "shardId-0"), START, None, None, 0.0)
    for _ in range(3):
        with contextlib.suppress(RangeUnavailable):
            list(agent._read(request))
    agent.report_figures()
    agent.report_figures()

    assert [each for each in reported if not isinstance(each, BufferHeld)] == [RangesAsked(3)]


def test_an_agent_says_which_of_its_reads_were_refused(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of each shard that it polls, since the last time."""
    reported: list[object] = []
    monkeypatch.setattr(agent, "report", reported.append)
    split = SplitId("clicks", "shardId-0")
    poller = agent._opener_of_pollers(lambda: 1)(split, START, ShardBuffer(START, BufferBudget(100)))
    assert isinstance(poller, Poller)
    throttled = ServiceError("no", operation="GetRecords", throttling=True, retryable=True)
    for error in (throttled, throttled, ServiceError("no", operation="GetRecords", retryable=True)):
        poller._handle_error(error)
    for _ in range(2):
        agent.report_figures()

    assert [each for each in reported if not isinstance(each, BufferHeld)] == [CallsCounted(split, 2, 3)]


def test_a_consumer_that_was_taken_over_stays(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another reader uses it. A consumer that was registered in place of another is another consumer."""
    gone: list[str] = []
    monkeypatch.setattr(ConsumerRegistrar, "deregister", lambda _self, arn: gone.append(arn))
    split = SplitId("clicks", "shardId-0")
    agent.report(SubscriptionEnded(split, 1, "taken over", TAKEN_OVER, OLD))
    agent.report(SubscriptionEnded(split, 2, "no", "AccessDeniedException", NEW))
    agent.deregister([OLD, NEW])

    assert gone == [NEW]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_source_knows_the_consumer_of_its_subscription(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """Not the consumer that its next subscription would have had. Without a subscription it is that of the
    call.
    """
    refusals: list[str] = []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    def subscribe(subscribing: Subscribing, *_: object) -> object:
        if subscribing.consumer_arn in refusals:
            raise ServiceError("no", code="AccessDeniedException")
        return SimpleNamespace(close=lambda: None, next_payload=lambda: b'{"ContinuationSequenceNumber":"1"}')

    monkeypatch.setattr(Subscribing, "__call__", subscribe)
    source = agent._open_source(SplitId("clicks", "shardId-0"), START, ShardBuffer(START, BufferBudget(100)))
    agent._handle_message(ConsumersChanged({"clicks": OLD}, ()))
    if is_refused:
        refusals.append(OLD)
    else:
        source.next_event()
        agent._handle_message(ConsumersChanged({"clicks": NEW}, ()))
        refusals.append(NEW)
        source._renew_at = 0.0
    with pytest.raises(ServiceError):
        source.next_event()

    assert source.consumer == OLD


def test_an_agent_has_few_memory_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a thread for each shard. A user may want another number."""
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert child_environment()["MALLOC_ARENA_MAX"] == "2"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert child_environment()["MALLOC_ARENA_MAX"] == "8"


def test_the_buffer_is_reported_when_it_changes(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not each second."""
    reports: list[object] = []
    monkeypatch.setattr(agent, "report", reports.append)
    budget = agent._shards._budget  # type: ignore[union-attr]
    for held in (0, 0, 7, 7):
        budget._held = held
        agent.report_figures()

    host = agent.place[0]
    assert reports == [BufferHeld(host, 0, 5 * 2**20), BufferHeld(host, 7, 5 * 2**20)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"agentBindAddress": "192.0.2.1"},
            r"it can't listen at 192\.0\.2\.1: .* \(options .*'agentBindAddress' and .* say where\)",
        ),
        (
            {"agentEncryption": "tls", "agentCertificate": "/gone.pem"},
            r"the agent has no certificate: /gone\.pem: .*No such file.*",
        ),
    ],
)
def test_an_agent_that_cannot_start_tells_the_planner_why(options: dict[str, str], reason: str) -> None:
    """The planner's log line has it, and not a traceback elsewhere."""
    config = source_config_from_options(
        {"streamName": "clicks", "region": "us-east-1", "consumerName": "app", **options}, streaming=True
    )
    assert config.agent is not None
    ours, theirs = socket.socketpair()
    setup = AgentSetup.beside_driver(config, place_agent(config.agent, LOCAL))
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as planner:
        planner.set_timeout(60.0)
        with pytest.raises(SystemExit):
            _start(setup, Link(channel))
        message = decode_from_agent(planner.receive())
    assert isinstance(message, StartFailed)
    assert re.fullmatch(reason, message.reason)


def test_an_agent_on_a_worker_host_that_cannot_start_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a line of its host's log, without a traceback."""
    config = source_config_from_options(
        {
            "streamName": "clicks",
            "region": "us-east-1",
            "consumerName": "app",
            "agent": "workers",
            "agentEncryption": "tls",
            "agentCertificate": "/gone.pem",
        },
        streaming=True,
    )
    assert config.agent is not None
    hub = Address("127.0.0.1", 1, b"secret", b"start")
    setup = WorkerAgentSetup(config, config.agent, ON_THIS_HOST, b"secret", hub)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(agent_module, "connect", lambda *_args, **_options: Channel(ours))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pickle.dumps(setup))))
    with closing(Channel(theirs)), closing(ours):
        agent_module._run_on_worker()

    assert "this host gets no agent, and its tasks read without one: the agent has no cert" in caplog.text
    assert "Traceback" not in caplog.text
