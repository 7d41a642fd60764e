"""Agents that no task reaches: the planning process finds out, says so once, and stops paying for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from fake_agent import ARN, OTHER, SPLIT, Planning, cut_point, event, plannings

from sluice.channels.channel import SPARK_DRIVER, Address
from sluice.kinesis.planner.agent_use import AgentUse
from sluice.kinesis.planner.shard_subscription import ShardSubscription
from sluice.kinesis.shared.launch import AgentPlace
from sluice.kinesis.shared.protocol import RangesAsked, SubscriptionEnded, Unsubscribe, WorkerHosts
from sluice.source.model.offsets import HORIZON
from sluice.source.model.splits import SplitId


@pytest.fixture
def make() -> Iterator[Callable[..., Planning]]:
    with plannings() as make:
        yield make


class Use:
    """An `AgentUse` and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.use = AgentUse(lambda: self.now)

    def run(self, batches: int, ranges: int = 1, *, asked: int = 0, seconds: float = 20.0) -> None:
        for _ in range(batches):
            self.use.record_batch(ranges)
            self.use.record_asked(asked)
            self.now += seconds


def test_agents_are_judged_after_a_minute_and_three_batches() -> None:
    """Batches may be long, or many a second."""
    few, short = Use(), Use()
    few.run(2, seconds=100.0)
    short.run(1_000, seconds=0.05)
    assert not few.use.is_unused
    assert not short.use.is_unused

    few.run(1)
    short.run(300, seconds=0.05)

    assert few.use.is_unused
    assert short.use.is_unused


@pytest.mark.parametrize("ranges", [1, 1_000])
def test_a_small_part_is_not_none_at_all(ranges: int) -> None:
    """However many ranges there are, to be asked for none is another matter."""
    use = Use()
    for _ in range(10):
        use.run(1, ranges=ranges)
        assert use.use.find_small_part() is None

    assert use.use.is_unused


def test_batches_without_ranges_at_agents_tell_nothing() -> None:
    """A stream without records has none."""
    use = Use()
    use.run(100, ranges=0)

    assert not use.use.is_unused


def test_one_range_that_is_asked_for_is_enough() -> None:
    """Some task reaches the agent."""
    use = Use()
    use.run(50)
    use.use.record_asked(1)

    assert not use.use.is_unused


def test_hosts_that_cannot_connect_show_by_the_part_that_is_asked_for() -> None:
    """It is said once, and again after it has been well."""
    use = Use()
    use.run(10, ranges=10, asked=5)
    assert use.use.find_small_part() == (50, 100)
    use.run(10, ranges=10, asked=5)
    assert use.use.find_small_part() is None
    use.run(10, ranges=10, asked=10)
    assert use.use.find_small_part() is None
    use.run(10, ranges=10, asked=5)
    assert use.use.find_small_part() == (50, 100)


def test_ranges_that_no_agent_could_hold_yet_are_not_missed() -> None:
    """Agents on workers take a while to start. What is read until then is polled, by every host."""
    use = Use()
    for _ in range(3):
        use.use.record_awaiting_batch()
    use.run(5, ranges=10, asked=10)

    assert use.use.find_small_part() is None
    assert use.use.asked == 0  # it was judged


def test_each_pause_is_longer_than_the_last() -> None:
    """It ends when consumers are there again, which takes a while, and is begun once."""
    use = Use()
    pauses = []
    for _ in range(5):
        pauses.append(use.use.begin_pause())
        use.now += pauses[-1] - 1
        assert use.use.is_paused
        assert not use.use.begin_resume()
        use.now += 1
        assert [use.use.begin_resume(), use.use.begin_resume(), use.use.is_paused] == [True, False, True]
        use.use.end_pause()
        assert not use.use.is_paused
    assert pauses == [600, 1200, 2400, 3600, 3600]


def test_a_batch_is_judged_when_its_tasks_have_asked(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with more ranges than those before would look like hosts that cannot connect."""
    planning = make()
    client = planning.client
    address = Address("10.0.0.1", 7, b"secret", b"start")
    for ranges in (5, 5, 5, 12, 12, 30):
        splits = [SplitId("clicks", str(number)) for number in range(ranges)]
        monkeypatch.setattr(client, "_agents", lambda given: dict.fromkeys(given, address))
        assert len(client.agents(splits)) == ranges
        client._use.record_asked(ranges)
        planning.now += 25

    assert "some hosts can't connect" not in caplog.text


# --- the client -------------------------------------------------------------------------------------------


def holding(planning: Planning) -> None:
    """An agent that has records of a shard."""
    agent = planning.listening()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(5), first="3"))
    planning.until(lambda: planning.client.agents([SPLIT]))


def run_batches(planning: Planning, count: int = 5) -> None:
    """Batches of many ranges each, as of many shards."""
    for _ in range(count):
        planning.client.agents([SPLIT])
        planning.client._use.assigned += 100 * (planning.client._use.assigned > 0)
        stay_awake(planning, 20)
        planning.client.follow({SPLIT: HORIZON})


def stay_awake(planning: Planning, seconds: int) -> None:
    """Time passes, and the agent answers all questions."""
    supervised = planning.client._supervisor._agent
    assert supervised is not None
    for _ in range(0, seconds, 4):
        planning.now += 4.0
        planning.agent.answer()
        planning.until(lambda: supervised.link.silence == 0)


def test_subscriptions_end_when_no_task_asks(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once, the consumers are released, and ten minutes later they are tried again."""
    planning = make()
    released: list[float] = []
    planning.client.release = lambda: released.append(planning.now)
    holding(planning)
    with caplog.at_level(logging.WARNING):
        run_batches(planning, 3)
        # Tasks of this batch need not try: each would wait for a connection.
        assert planning.client.agents([SPLIT]) == {}
        # Not only with the next trigger: subscriptions would fail one by one when their consumer goes.
        assert planning.agent.received() == Unsubscribe(SPLIT)
        run_batches(planning)
        run_batches(planning)

    told = [record.getMessage() for record in caplog.records if "no task has reached" in record.getMessage()]
    assert len(told) == 1
    assert "'agentAddress'" in told[0]
    assert "next attempt in 10 min" in told[0]
    planning.until(lambda: released)
    assert len(released) == 1
    assert planning.client.agents([SPLIT]) == {}
    # Another subscription has found that the consumer is gone. That is what was wanted.
    shard = ShardSubscription(99, HORIZON, lambda: planning.now)
    planning.client._subscriptions.shards.setdefault(SPLIT, shard)
    ended = SubscriptionEnded(SPLIT, 99, "no such consumer", "ResourceNotFoundException")
    planning.agent.send(ended)
    planning.until(lambda: shard.ended)
    stay_awake(planning, 4)
    assert planning.client._consumers._renewing == set()
    assert planning.renewed.empty()

    stay_awake(planning, 600)
    planning.client.follow({SPLIT: HORIZON})
    assert planning.renewed.get(timeout=60) == "clicks"
    planning.until(lambda: not planning.client._use.is_paused)
    assert planning.agent.received() == Unsubscribe(SPLIT)  # that other one
    planning.subscribed()


def test_an_agent_that_is_asked_stays(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a minute is enough."""
    planning = make()
    holding(planning)
    for _ in range(3):
        planning.agent.send(RangesAsked(1))
        planning.until(lambda: planning.client._use.asked)
        run_batches(planning, 4)
        planning.client._use.reset()

    assert "no task has reached" not in caplog.text


def test_an_address_that_was_guessed_is_replaced_first(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """An application has stopped its local session, and uses a cluster from the same JVM."""
    planning = make()
    planning.client._setup = planning.guessed()
    holding(planning)
    with caplog.at_level(logging.WARNING):
        run_batches(planning, 3)
        planning.client.agents([SPLIT])

    def is_replaced() -> bool:
        planning.client.start()
        return len(planning.agents) == 2

    planning.until(is_replaced)
    assert planning.agent.setup.place == AgentPlace(SPARK_DRIVER, "")
    assert "another one is started, at Spark's own address" in caplog.text


def test_workers_whose_agents_cannot_join_are_not_paid_for(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Each task starts one, which can't reach the one beside the driver. A host that joins can."""
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
            assert blocked.client._use.assigned == 0
            stay_awake(blocked, 20)

    assert "no task has reached the agent" in caplog.text


def test_a_query_that_may_not_poll_goes_on_trying(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """Its tasks fail with the reason."""
    planning = make(subscribeToShardFallback="fail")
    holding(planning)
    run_batches(planning)

    assert "no task has reached" not in caplog.text
    assert ARN in planning.client._consumers.message.arns.values()
