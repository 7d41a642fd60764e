"""The planner's end of the link: what it asks of an agent, and what it makes of the agent's messages."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_agent import ARN, AT_HORIZON, OTHER, PATIENT, SPLIT, Planning, cut_point, event, plannings

from sluice.errors import ServiceError
from sluice.kinesis.shared.protocol import (
    FAR_BEHIND,
    INTEGRITY_PROBLEM,
    TAKEN_OVER,
    Acknowledge,
    BufferHeld,
    ConsumersChanged,
    Listening,
    Server,
    Subscribe,
    SubscriptionEnded,
    Unsubscribe,
    WorkerHosts,
)
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import HORIZON, After, AtTime, Position
from sluice.source.state.subscriptions import SubscriptionProgress


@pytest.fixture
def make() -> Iterator[Callable[..., Planning]]:
    with plannings() as make:
        yield make


def test_a_shard_is_subscribed_to_from_its_position_on(make: Callable[..., Planning]) -> None:
    """Another trigger at the same positions sends nothing; one without the shard ends the subscription."""
    planning = make()
    agent = planning.started()
    position = After("50")
    for _ in range(3):
        planning.client.follow({SPLIT: HORIZON, OTHER: position})
    planning.client.follow({OTHER: position})

    received = [agent.received() for _ in range(3)]

    assert received == [
        Subscribe(SPLIT, 1, AT_HORIZON),
        Subscribe(OTHER, 2, IteratorStart("AT_SEQUENCE_NUMBER", "50")),
        Unsubscribe(SPLIT),
    ]


def test_progress_is_known_once_the_first_event_has_come(make: Callable[..., Planning]) -> None:
    """Before that, and without a subscription, there is none."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    assert planning.client.progress(SPLIT, HORIZON) is None

    agent.send(event(generation, cut_point(5, 3), cut_point(9, 2), first="3"))
    progress = planning.until(lambda: planning.client.progress(SPLIT, HORIZON))

    assert progress == SubscriptionProgress((cut_point(5, 3), cut_point(9, 2)), 0, caught_up_at=7)
    assert progress.is_at_tip
    assert planning.client.progress(OTHER, HORIZON) is None


def test_an_idle_event_is_no_news(make: Callable[..., Planning]) -> None:
    """A thousand idle shards send 200 a second, and the planner looks at all shards after any news."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    seen = [planning.client.version]

    def see() -> None:
        before = last[-1]
        last.append(planning.until(lambda: (now := shard._last_event) is not before and now))
        with planning.client._lock:  # the message is handled
            seen.append(planning.client.version)

    shard = planning.client._subscriptions.shards[SPLIT]
    last = [shard._last_event]
    for points in ([], [], [cut_point(5)], [], []):
        agent.send(event(generation, *points))
        see()
    agent.send(SubscriptionEnded(SPLIT, generation, "gone"))
    planning.until(lambda: planning.client.version != seen[-1])
    first, *later = [after - before for before, after in itertools.pairwise(seen)]
    assert (first, later) == (1, [0, 1, 0, 0])


def test_progress_begins_behind_the_position(make: Callable[..., Planning]) -> None:
    """Cut points that a batch has taken are left out, and the agent may drop their records."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(5), cut_point(9), first="3"))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))

    planning.client.follow({SPLIT: After("5")})

    progress = planning.client.progress(SPLIT, After("5"))
    assert progress is not None
    assert progress.cut_points == (cut_point(9),)
    assert agent.received() == Acknowledge(SPLIT, "5")


@pytest.mark.parametrize("start", [HORIZON, AtTime(5)])
def test_batches_may_come_further_than_the_subscription(
    make: Callable[..., Planning], start: Position
) -> None:
    """A batch may end where a probe has been, before the subscription gives a record: it covers the rest."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed(start)
    position = After("70")

    planning.client.follow({SPLIT: position})

    assert agent.received() == Acknowledge(SPLIT, "70")
    agent.send(event(generation, cut_point(60), cut_point(80), first="50"))
    progress = planning.until(lambda: planning.client.progress(SPLIT, position))
    assert progress.cut_points == (cut_point(80),)


def test_a_subscription_that_begins_behind_the_batches_does_not_cover_them(
    make: Callable[..., Planning],
) -> None:
    """Records between may have expired before they were pushed. Polling tells; then it covers the rest."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    position = After("70")
    planning.client.follow({SPLIT: position})
    agent.send(event(generation))
    planning.until(lambda: planning.client.progress(SPLIT, position))

    agent.send(event(generation, cut_point(80), first="80"))
    planning.until(lambda: planning.client._subscriptions.shards[SPLIT]._cut_points)

    assert planning.client.progress(SPLIT, position) is None
    assert planning.client.progress(SPLIT, After("79")) is not None


def test_progress_is_made_anew_only_after_an_event(make: Callable[..., Planning]) -> None:
    """The planner asks for it a hundred times a second, of hundreds of shards."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(5), first="5"))
    progress = planning.until(lambda: planning.client.progress(SPLIT, HORIZON))

    assert planning.client.progress(SPLIT, HORIZON) is progress
    assert progress is not None
    agent.send(event(generation, cut_point(6)))
    newer = planning.until(lambda: (now := planning.client.progress(SPLIT, HORIZON)) is not progress and now)

    assert newer.cut_points == (cut_point(5), cut_point(6))


def test_a_position_before_the_subscription_is_not_covered(make: Callable[..., Planning]) -> None:
    """It is subscribed to anew from there: the planner may have gone back."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed(After("50"))
    agent.send(event(generation, cut_point(50), cut_point(60), first="50"))
    planning.until(lambda: planning.client.progress(SPLIT, After("50")))

    assert planning.client.progress(SPLIT, After("20")) is None
    planning.client.follow({SPLIT: After("20")})

    assert agent.received() == Subscribe(SPLIT, 2, IteratorStart("AT_SEQUENCE_NUMBER", "20"))
    assert planning.client.progress(SPLIT, After("20")) is None


def test_messages_about_an_earlier_subscription_are_ignored(make: Callable[..., Planning]) -> None:
    """They may still be in flight when the next subscription begins."""
    planning = make()
    agent = planning.started()
    old = planning.subscribed(After("50"))
    new = planning.subscribed(After("20"))

    agent.send(event(old, cut_point(60), first="50"), event(new, cut_point(25), first="20"))
    progress = planning.until(lambda: planning.client.progress(SPLIT, After("20")))

    assert progress.cut_points == (cut_point(25),)


@pytest.mark.parametrize(
    ("code", "pause"),
    [
        ("", 0.0),
        (FAR_BEHIND, 10.0),
        ("AccessDeniedException", 10.0),
        (TAKEN_OVER, 300.0),
        (INTEGRITY_PROBLEM, 300.0),
    ],
)
def test_the_code_of_an_end_decides_when_the_next_attempt_follows(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture, code: str, pause: float
) -> None:
    """At once where the service did not end it; late where two readers would take over from each other."""
    caplog.set_level(logging.INFO, "sluice.kinesis.planner.agent_client")
    planning = make()
    agent = planning.started()
    agent.send(SubscriptionEnded(SPLIT, planning.subscribed(), "why", code))
    planning.until(lambda: planning.client._subscriptions.shards[SPLIT].ended)
    assert planning.client.progress(SPLIT, HORIZON) is None
    next_attempt = f"next attempt to subscribe in {pause:g} s: why"
    line = f"{SPLIT}: not subscribed; polling from TRIM_HORIZON on, {next_attempt}"
    planning.until(lambda: line in caplog.messages)

    if pause:
        planning.now += pause - 1
        planning.client.follow({SPLIT: HORIZON})
        planning.now += 1
    planning.client.follow({SPLIT: After("8")})

    assert agent.received() == Subscribe(SPLIT, 2, IteratorStart("AT_SEQUENCE_NUMBER", "8"))


def test_a_subscription_that_batches_have_left_behind_is_replaced(make: Callable[..., Planning]) -> None:
    """Probes took a backlog while it was being opened: what it would push for hours has been read."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(5), first="5", behind=60_000))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))
    position = After("900")
    planning.client.follow({SPLIT: position})
    assert agent.received() == Acknowledge(SPLIT, "900")

    for seconds in (0.0, 9.0, 1.0):
        planning.now += seconds
        planning.client.follow({SPLIT: position})

    assert agent.received() == Subscribe(SPLIT, 2, IteratorStart("AT_SEQUENCE_NUMBER", "900"))


@pytest.mark.parametrize(("cut_at", "behind"), [(5, 0), (950, 60_000)])
def test_a_subscription_that_is_not_behind_is_left_alone(
    make: Callable[..., Planning], cut_at: int, behind: int
) -> None:
    """At the tip nothing has to come; and cut points that it has brought are for the next batch."""
    planning = make()
    agent = planning.started()
    generation = planning.subscribed()
    agent.send(event(generation, cut_point(cut_at), first="5", behind=behind))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))
    position = After("900")
    for seconds in (0.0, 9.0, 100.0):
        planning.now += seconds
        planning.client.follow({SPLIT: position})
    planning.client.follow({})

    assert [agent.received(), agent.received()] == [Acknowledge(SPLIT, "900"), Unsubscribe(SPLIT)]


@pytest.mark.parametrize("retryable", [True, False])
def test_where_polling_is_forbidden_a_refusal_fails_the_query(
    make: Callable[..., Planning], *, retryable: bool
) -> None:
    """The error names the reason, the shard and the option that forbids polling. It may pass if its reason
    may.
    """
    planning = make(subscribeToShardFallback="fail")
    agent = planning.started()
    generation = planning.subscribed()
    agent.send(SubscriptionEnded(SPLIT, generation, "not allowed", "AccessDenied", retryable=retryable))
    planning.until(lambda: planning.client._subscriptions.shards[SPLIT].ended)

    with pytest.raises(
        ServiceError,
        match=r"not allowed; clicks/shardId-0 is not polled instead, since option 'subscribeToShardFallback'",
    ) as caught:
        planning.client.follow({SPLIT: HORIZON})
    assert caught.value.retryable == retryable


def test_where_polling_is_forbidden_an_integrity_problem_fails_nothing(make: Callable[..., Planning]) -> None:
    """The service refused nothing: probes continue until there is another subscription."""
    planning = make(subscribeToShardFallback="fail")
    agent = planning.started()
    agent.send(SubscriptionEnded(SPLIT, planning.subscribed(), "it is 23 h behind", INTEGRITY_PROBLEM))
    planning.until(lambda: planning.client._subscriptions.shards[SPLIT].ended)

    planning.client.follow({SPLIT: HORIZON})


@pytest.mark.parametrize("code", ["ResourceNotFoundException", TAKEN_OVER])
def test_a_missing_consumer_is_registered_again(make: Callable[..., Planning], code: str) -> None:
    """The agent gets the new consumer's ARN, and the shard is subscribed to again at once.

    A consumer that is being deleted is not missing yet: it is refused as being in use.
    """
    planning = make()
    agent = planning.started()
    planning.new_arn = "arn:consumer:2"
    agent.send(SubscriptionEnded(SPLIT, planning.subscribed(), "it is DELETING", code))

    assert planning.renewed.get(timeout=PATIENT) == "clicks"
    assert agent.received() == ConsumersChanged({"clicks": "arn:consumer:2"}, ())
    planning.until(lambda: planning.client._subscriptions.shards[SPLIT].may_retry)
    planning.client.follow({SPLIT: HORIZON})
    assert agent.received() == Subscribe(SPLIT, 2, AT_HORIZON)


def test_the_next_agent_deregisters_no_consumer_that_another_reader_uses(
    make: Callable[..., Planning],
) -> None:
    """It has not seen that the consumer was taken over."""
    planning = make()
    planning.own(ARN, "arn:consumer:2")
    first = planning.started(ConsumersChanged({"clicks": ARN}, (ARN, "arn:consumer:2")))
    first.send(SubscriptionEnded(SPLIT, planning.subscribed(), "taken over", TAKEN_OVER, ARN))
    planning.until(lambda: ARN not in planning.consumers.going)

    first.die()
    planning.until(lambda: first.is_closed)
    planning.now += 2.0

    planning.started(ConsumersChanged({"clicks": ARN}, ("arn:consumer:2",)))


@pytest.mark.parametrize(
    ("owns", "pauses"), [(True, [300.0]), (False, [10.0, 300.0])], ids=["own", "of somebody else"]
)
def test_a_consumer_of_somebody_else_is_taken_back_once(
    make: Callable[..., Planning], owns: bool, pauses: list[float]
) -> None:
    """Only who loses a subscription learns of the other reader, and the owner must, before it is stopped."""
    planning = make()
    planning.own(*[ARN] * owns)
    agent = planning.started(ConsumersChanged({"clicks": ARN}, (ARN,) if owns else ()))
    generation = planning.subscribed()
    for pause in pauses:
        agent.send(SubscriptionEnded(SPLIT, generation, "taken over", TAKEN_OVER, ARN))
        planning.until(lambda: planning.client._subscriptions.shards[SPLIT].ended)
        planning.now += pause - 1
        planning.client.follow({SPLIT: HORIZON})
        planning.now += 1
        planning.client.follow({SPLIT: HORIZON})
        generation += 1
        if owns:
            assert agent.received() == ConsumersChanged({"clicks": ARN}, ())
        assert agent.received() == Subscribe(SPLIT, generation, AT_HORIZON)
    assert planning.consumers.going == frozenset()


def test_an_agent_that_dies_is_followed_by_another(make: Callable[..., Planning]) -> None:
    """Not sooner than 2 s after the first one was started; until then no subscription covers anything."""
    planning = make()
    first = planning.started()
    first.send(
        Listening(Server("127.0.0.1", 1, b"start")), event(planning.subscribed(), cut_point(5), first="5")
    )
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))

    first.die()
    planning.until(lambda: first.is_closed)

    assert planning.client.progress(SPLIT, HORIZON) is None
    assert planning.client.agents([SPLIT]) == {}
    planning.client.follow({SPLIT: After("5")})
    assert len(planning.agents) == 1
    planning.now += 2.0
    planning.client.follow({SPLIT: After("5")})
    assert len(planning.agents) == 2
    assert [planning.agent.received(), planning.agent.received()] == [
        ConsumersChanged({"clicks": ARN}, ()),
        Subscribe(SPLIT, 2, IteratorStart("AT_SEQUENCE_NUMBER", "5")),
    ]


def links() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "sluice-link"}


def test_an_agent_that_dies_leaves_no_thread(make: Callable[..., Planning]) -> None:
    """Its link would ask it for a word each second, and in an outage one agent a minute dies."""
    planning = make()
    before = links()
    for _ in range(10):
        planning.client.start()
        assert links() - before
        planning.agent.die()
        planning.until(lambda: planning.agent.is_closed)
        planning.until(lambda: not links() - before)
        planning.now += 60.0

    assert len(planning.agents) == 10


def test_tasks_get_the_address_of_the_shards_agent(make: Callable[..., Planning]) -> None:
    """That agent may be on another host than the driver."""
    planning = make()
    agent = planning.started()
    agent.send(Listening(Server("127.0.0.1", 1, b"start")))
    planning.until(lambda: planning.client.hub)
    generation = planning.subscribed()
    assert str(planning.client.agents([SPLIT])[SPLIT]) == "127.0.0.1:1"

    agent.send(event(generation))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))

    found = planning.client.agents([SPLIT, OTHER])
    assert {split: str(address) for split, address in found.items()} == {SPLIT: "10.0.0.7:4000"}
    assert found[SPLIT].secret == agent.setup.secret
    agent.send(WorkerHosts(("10.0.0.7", "10.0.0.8")))
    planning.until(lambda: planning.client.hosts == {"10.0.0.7", "10.0.0.8"})


def test_the_agent_learns_which_consumers_the_query_registered(make: Callable[..., Planning]) -> None:
    """It is informed of changes: only the offsets show which ones an earlier run registered."""
    planning = make()
    agent = planning.started()
    planning.own()
    planning.own(ARN)
    planning.own(ARN)
    planning.client.follow({SPLIT: HORIZON})

    assert agent.received() == ConsumersChanged({"clicks": ARN}, (ARN,))
    assert isinstance(agent.received(), Subscribe)


@pytest.mark.parametrize(("mode", "stops"), [("auto", 1), ("never", 0)])
def test_the_agent_learns_of_a_stop_unless_consumers_are_to_stay(
    make: Callable[..., Planning], mode: str, stops: int
) -> None:
    """Without this message, the end of the link counts as a crash, and nothing is deregistered."""
    planning = make(consumerDeregistration=mode)
    planning.own(ARN)
    agent = planning.started(ConsumersChanged({"clicks": ARN}, (ARN,) * stops))

    planning.client.tell_stop()
    planning.client.close()

    assert agent.stops == stops
    assert agent.is_closed


def test_an_agent_is_started_for_a_stop_where_there_is_none(make: Callable[..., Planning]) -> None:
    """The one before has died, and no trigger has come since. Not if there is nothing to deregister."""
    planning = make()
    agent = planning.started()
    planning.own(ARN)
    agent.die()
    planning.until(lambda: agent.is_closed)
    planning.client.tell_stop()

    assert len(planning.agents) == 2
    assert planning.agent.received() == ConsumersChanged({"clicks": ARN}, (ARN,))
    assert planning.agent.stops == 1

    planning.launch_error = OSError("no memory")
    planning.client.tell_stop()
    planning.launch_error = None
    planning.own()
    planning.client.tell_stop()
    planning.own(ARN)
    planning.client.close()
    planning.client.tell_stop()
    assert len(planning.agents) == 2


def test_progress_reports_tell_the_agents_state_and_buffer(make: Callable[..., Planning]) -> None:
    """What a silent or dead agent buffered last is not known any more."""
    planning = make()
    states = [planning.client.figures()]
    agent = planning.started()
    states.append(planning.client.figures())
    agent.send(Listening(Server("127.0.0.1", 1, b"start")), BufferHeld("127.0.0.1", 30, 100))
    planning.until(lambda: "bufferedBytes" in planning.client.figures())
    planning.subscribed()
    states.append(planning.client.figures())
    planning.pass_time(6)
    states.append(planning.client.figures())
    agent.die()
    planning.until(lambda: planning.client.figures()["state"] == "none")

    none = {"state": "none", "subscribed": 0, "silentSubscriptions": 0, "workers": 0, "silentWorkers": 0}
    assert states == [
        none,
        none | {"state": "starting"},
        none | {"state": "listening", "subscribed": 1, "bufferedBytes": 30, "bufferSize": 100},
        none | {"state": "silent", "subscribed": 1, "silentSubscriptions": 1},
    ]
    assert planning.client.figures() == none


def test_progress_reports_tell_what_is_silent(make: Callable[..., Planning]) -> None:
    """Agents on worker hosts, and subscriptions of which nothing comes though their agent is well."""
    planning = make()
    agent = planning.listening()
    agent.send(event(planning.subscribed(), cut_point(5), first="5"), WorkerHosts(("a", "b"), ("b",)))
    planning.until(lambda: planning.client.figures()["workers"] == 2)

    def silent() -> tuple[int, int]:
        figures = planning.client.figures()
        return figures["silentSubscriptions"], figures["silentWorkers"]

    planning.until(lambda: silent() == (0, 1))
    planning.now += 10
    agent.answer()
    planning.until(lambda: planning.client.figures()["state"] == "listening")
    assert silent() == (1, 1)
    agent.send(WorkerHosts(("a", "b")))
    planning.until(lambda: silent() == (1, 0))


def test_the_buffers_of_worker_hosts_are_added_up(make: Callable[..., Planning]) -> None:
    """Only connected hosts count."""
    planning = make()
    agent = planning.listening()
    agent.send(
        WorkerHosts(("a", "b")), BufferHeld("a", 1, 10), BufferHeld("b", 2, 10), BufferHeld("a", 5, 10)
    )
    planning.until(lambda: planning.client.figures().get("bufferedBytes") == 7)
    agent.send(WorkerHosts(("b",)))
    planning.until(lambda: planning.client.figures().get("bufferedBytes") == 2)

    assert planning.client.figures()["bufferSize"] == 10


def test_a_closed_client_starts_no_agent(make: Callable[..., Planning]) -> None:
    """A separate thread may still renew a consumer, and inform the agent."""
    planning = make()
    planning.listening()
    planning.client.close()
    planning.now += 60.0
    planning.client.start()
    planning.client.wait_for_agent(1e9)  # returns
    assert len(planning.agents) == 1
