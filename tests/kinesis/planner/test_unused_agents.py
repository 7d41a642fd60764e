"""Agents that no task reaches: the planning process finds out, says so once, and stops paying for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from fake_agent import ARN, OTHER, SPLIT, Planning, cut_point, event, plannings

from sluice.kinesis.planner.shard_subscription import ShardSubscription
from sluice.kinesis.shared.protocol import (
    ConsumersChanged,
    RangesAsked,
    SubscriptionEnded,
    Unsubscribe,
    WorkerHosts,
)
from sluice.source.model.offsets import HORIZON


@pytest.fixture
def make() -> Iterator[Callable[..., Planning]]:
    with plannings() as make:
        yield make


def holding(planning: Planning) -> None:
    """An agent that has records of a shard."""
    agent = planning.listening()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(5), first="3"))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))


def run_batches(planning: Planning, count: int, seconds: int = 20) -> None:
    for _ in range(count):
        planning.client.agents([SPLIT])
        stay_awake(planning, seconds)
        planning.client.follow({SPLIT: HORIZON})


def stay_awake(planning: Planning, seconds: int) -> None:
    """Time passes, and the agent answers all questions."""
    supervised = planning.client._supervisor._agent
    assert supervised is not None
    for _ in range(0, seconds, 4):
        planning.now += 4.0
        planning.agent.answer()
        planning.until(lambda: supervised.link.silence == 0)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if "no task has reached" in line]


def test_everything_is_polled_once_no_task_has_asked_for_a_minute(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once, and the consumers are released. Nothing is tried again in this run."""
    planning = make()
    holding(planning)
    planning.own(ARN)
    assert planning.agent.received() == ConsumersChanged({"clicks": ARN}, (ARN,))
    run_batches(planning, 4)
    assert said(caplog) == []
    # Tasks of this batch need not try: each would wait for a connection.
    assert planning.client.agents([SPLIT]) == {}
    # Not only with the next trigger: subscriptions would fail one by one when their consumer goes.
    assert planning.agent.received() == Unsubscribe(SPLIT)
    planning.until(lambda: planning.deregistered)
    assert planning.agent.received() == ConsumersChanged({"clicks": ARN}, ())
    # Another subscription has found that the consumer is deleted. That was the aim.
    shard = ShardSubscription(99, HORIZON, lambda: planning.now)
    planning.client._subscriptions.shards.setdefault(SPLIT, shard)
    planning.agent.send(SubscriptionEnded(SPLIT, 99, "no such consumer", "ResourceNotFoundException"))
    planning.until(lambda: shard.ended)
    run_batches(planning, 100)

    (line,) = said(caplog)
    assert planning.client.hub is None, "workers would go on starting agents that join it"
    assert "at the ports of option 'agentPorts'" in line
    assert "option 'agentAddress'" in line
    assert planning.deregistered == [ARN]
    assert planning.renewed.empty()
    assert planning.client.agents([SPLIT]) == {}


def test_batches_that_last_long_are_waited_for(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Executors may take minutes to start, and then a moment to read: only a later batch tells."""
    planning = make()
    holding(planning)
    run_batches(planning, 1, seconds=600)
    run_batches(planning, 1, seconds=4)
    assert said(caplog) == []
    run_batches(planning, 1, seconds=600)
    planning.client.agents([SPLIT])
    assert len(said(caplog)) == 1


def test_an_agent_that_is_asked_stays(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a minute is enough, and without records nobody asks."""
    planning = make()
    holding(planning)
    for _ in range(3):
        run_batches(planning, 3)
        planning.agent.send(RangesAsked(1))
        planning.until(lambda: not planning.client._has_assigned)
    stay_awake(planning, 600)
    planning.client.agents([])
    planning.client.agents([OTHER])

    assert said(caplog) == []


def test_workers_whose_agents_cannot_join_are_not_paid_for(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Each task starts one, which can't reach the one on the driver host. A host that joins can."""
    joining, blocked = make(agent="workers"), make(agent="workers")
    for planning in (joining, blocked):
        planning.listening()
    joining.agent.send(WorkerHosts(("10.0.0.7",)))
    joining.until(lambda: joining.client.hosts)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            joining.client.agents([SPLIT, OTHER])
            stay_awake(joining, 20)
        assert "no task has reached" not in caplog.text
        for _ in range(5):
            blocked.client.agents([SPLIT, OTHER])
            stay_awake(blocked, 20)

    assert "no task has reached the agent" in caplog.text


def test_batches_without_an_agent_to_ask_say_nothing(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Agents have joined, and a backlog is polled; or the agent has died, and none can be started."""
    joined, died = make(agent="workers"), make()
    joined.listening()
    joined.client.agents([SPLIT])  # these tasks start agents
    joined.agent.send(WorkerHosts(("10.0.0.7",)))
    joined.until(lambda: joined.client.hosts)
    for _ in range(5):
        joined.client.agents([SPLIT])
        stay_awake(joined, 20)

    holding(died)
    assert died.client.agents([SPLIT])
    died.launch_error = OSError("no memory")
    died.agent.die()
    died.until(lambda: died.client.hub is None)
    for _ in range(5):
        died.now += 20
        died.client.agents([SPLIT])
    died.launch_error = None
    holding(died)
    assert died.client.agents([SPLIT])

    assert said(caplog) == []


def test_a_query_that_may_not_poll_keeps_trying(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks fail with the reason."""
    planning = make(subscribeToShardFallback="fail")
    holding(planning)
    run_batches(planning, 10)

    assert "no task has reached" not in caplog.text
    assert ARN in planning.consumers.arns.values()
