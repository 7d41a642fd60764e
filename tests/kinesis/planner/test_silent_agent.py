"""An agent that is stopped, hangs, or can't start costs its shards seconds, and is said so once."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from fake_agent import ARN, OTHER, PATIENT, SPLIT, FakeAgent, Planning, cut_point, event, plannings

from sluice.kinesis.shared.protocol import (
    Acknowledge,
    ConsumersChanged,
    Listening,
    Server,
    StartFailed,
    Subscribe,
    Unsubscribe,
)
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import HORIZON, After
from sluice.source.model.splits import SplitId

LOG = "sluice.kinesis.planner.agent_supervisor"


@pytest.fixture
def make() -> Iterator[Callable[..., Planning]]:
    with plannings() as make:
        yield make


def caught_up(planning: Planning) -> FakeAgent:
    """An agent that has said that the shard is at its tip, behind record 5."""
    agent = planning.listening()
    agent.send(event(planning.subscribed(), cut_point(5), first="5"))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))
    planning.client.follow({SPLIT: After("5")})
    assert agent.received() == Acknowledge(SPLIT, "5")
    assert planning.client.progress(SPLIT, After("5"))
    return agent


def lines(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [line for line in caplog.messages if all(word in line for word in words)]


# --- silence ------------------------------------------------------------------------------------------


def test_the_word_of_a_silent_agent_is_not_believed(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """5 s after its last word the planner probes, and tasks are not sent to the agent: they would wait. When
    it speaks again, its word counts again. Each of the two is said once.
    """
    caplog.set_level(logging.INFO, LOG)
    planning = make()
    agent = caught_up(planning)
    planning.now += 4.9
    assert planning.client.progress(SPLIT, After("5"))
    assert planning.client.agents([SPLIT])

    planning.now += 0.1
    for _ in range(3):
        assert planning.client.progress(SPLIT, After("5")) is None
        assert planning.client.agents([SPLIT]) == {}
        assert planning.client.hub is None
        planning.client.follow({SPLIT: After("5")})
        planning.client.check()
    (silent,) = lines(caplog, "said nothing")
    assert silent == (
        "clicks: the agent (process 4711) has said nothing for 5 s; polling until it speaks again, "
        "or is killed after 30 s"
    )

    planning.now += 3.0
    agent.answer()
    planning.until(lambda: planning.client.hub)
    for _ in range(3):
        planning.client.follow({SPLIT: After("5")})
    assert planning.client.progress(SPLIT, After("5"))
    assert planning.client.agents([SPLIT])
    assert len(lines(caplog, "speaks again after 8 s")) == 1
    assert planning.client.recoveries == 1
    assert len(lines(caplog, "said nothing")) == 1


def test_tasks_ask_an_agent_again_from_its_first_word_on(make: Callable[..., Planning]) -> None:
    """Whoever plans a batch now trusts it, though the silence may never have been logged."""
    planning = make()
    agent = caught_up(planning)
    assert planning.client.recoveries == 0
    planning.now += 5.0
    agent.answer()
    planning.until(lambda: planning.client.agents([SPLIT]))

    assert planning.client.recoveries == 1


def test_an_agent_that_answers_again_resumes_where_batches_are(make: Callable[..., Planning]) -> None:
    """Polling has come further meanwhile. Shards that were not read any more are unsubscribed from."""
    planning = make()
    agent = caught_up(planning)
    planning.client.follow({SPLIT: After("5"), OTHER: HORIZON})
    assert isinstance(agent.received(), Subscribe)
    planning.now += 60.0
    for number in range(6, 9):
        planning.client.follow({SPLIT: After(str(number))})

    agent.answer()
    planning.until(lambda: planning.client.hub)
    planning.client.follow({SPLIT: After("9")})

    assert [agent.received(), agent.received()] == [Unsubscribe(OTHER), Acknowledge(SPLIT, "9")]


def test_an_agent_that_starts_slowly_is_not_silent(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """It has said nothing yet that could be believed. A busy host may take a minute to start it."""
    planning = make()
    agent = planning.started()
    planning.pass_time(60)

    assert lines(caplog, "said nothing") == []
    assert not agent.is_closed
    planning.pass_time(60)
    planning.until(lambda: agent.ended is not None)
    assert len(lines(caplog, "killing the agent")) == 1


def test_an_agent_that_stays_silent_is_killed_and_replaced(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is stopped ends by SIGKILL alone, so nothing is waited for."""
    planning = make()
    planning.own(ARN)
    agent = planning.listening(ConsumersChanged({"clicks": ARN}, (ARN,)))
    planning.pass_time(15)
    assert not agent.is_closed

    planning.pass_time(15)
    planning.until(lambda: agent.ended is not None)
    assert agent.ended == 0.0
    planning.client.follow({SPLIT: After("5")})

    assert len(planning.agents) == 2
    assert [planning.agent.received(), planning.agent.received()] == [
        ConsumersChanged({"clicks": ARN}, (ARN,)),
        Subscribe(SPLIT, 1, IteratorStart("AT_SEQUENCE_NUMBER", "5")),
    ]
    assert len(lines(caplog, "killing the agent (process 4711)")) == 1
    assert len(lines(caplog, "has ended with exit code -9")) == 1


def test_an_agent_is_not_given_up_because_the_planner_stood_still(make: Callable[..., Planning]) -> None:
    """Its last word is an hour old then, and is not believed, but nobody has asked it since."""
    planning = make()
    agent = caught_up(planning)
    planning.now += 3600.0
    planning.client.follow({SPLIT: After("5")})
    planning.client.check()

    assert planning.client.progress(SPLIT, After("5")) is None
    assert not agent.is_closed


def test_a_planner_never_waits_for_its_agent(make: Callable[..., Planning]) -> None:
    """500 shards, 100 triggers, and an agent that takes nothing: more messages than a socket holds. Neither
    triggers nor tasks nor the stop of the query wait.
    """
    planning = make()
    planning.listening()
    splits = [SplitId("clicks", f"shardId-{number}") for number in range(500)]

    def plan() -> None:
        for number in range(100):
            planning.client.follow({split: After(str(10**40 + number)) for split in splits})
            planning.client.progress(splits[0], HORIZON)
        planning.client.agents(splits)
        planning.own(ARN)
        planning.client.tell_stop()
        planning.client.close()

    thread = threading.Thread(target=plan, daemon=True)
    thread.start()
    thread.join(PATIENT)

    assert not thread.is_alive()


def test_waiting_for_an_agent_is_waiting_for_one_that_speaks(make: Callable[..., Planning]) -> None:
    """Where polling is forbidden, tasks are not sent off before there is one."""
    planning = make(subscribeToShardFallback="fail")
    agent = planning.listening()
    planning.client.wait_for_agent(PATIENT)
    planning.now += 10.0
    planning.client.wait_for_agent(0.0)
    assert not planning.client._listens.is_set()

    agent.answer()
    planning.until(lambda: planning.client.hub)
    planning.client.wait_for_agent(PATIENT)
    assert planning.client._listens.is_set()


def test_the_wait_for_an_agent_includes_the_next_one(make: Callable[..., Planning]) -> None:
    """The silent one is killed after half a minute. Tasks that may not poll would take its subscriptions."""
    planning = make(subscribeToShardFallback="fail")
    agent = planning.listening()
    planning.now += 10.0
    waiting = threading.Thread(target=planning.client.wait_for_agent, args=(45.0,))
    waiting.start()
    planning.pass_time(30)
    planning.until(lambda: len(planning.agents) == 2)
    assert agent.ended == 0.0
    assert waiting.is_alive()

    planning.agent.send(Listening(Server("127.0.0.1", 1, b"start")))
    waiting.join(PATIENT)
    assert not waiting.is_alive()


# --- a subscription that is silent ----------------------------------------------------------------------


def test_that_nothing_is_new_is_believed_for_10_seconds(make: Callable[..., Planning]) -> None:
    """Events without records come every 5 s. Where even those stay away, the shard is probed, although its
    agent is well, and tasks do not ask the agent for what it lacks. The next event counts again.
    """
    planning = make()
    agent = caught_up(planning)
    generation = planning.client._subscriptions.shards[SPLIT].generation
    planning.now += 9.9
    agent.answer()
    planning.until(lambda: planning.client.progress(SPLIT, After("5")))
    assert planning.client.agents([SPLIT])

    planning.now += 0.1
    assert planning.client.progress(SPLIT, After("5")) is None
    assert planning.client.agents([SPLIT]) == {}

    agent.send(event(generation))
    assert planning.until(lambda: planning.client.progress(SPLIT, After("5"))).is_at_tip
    assert planning.client.agents([SPLIT])


def test_what_a_silent_subscription_has_brought_is_planned_first(make: Callable[..., Planning]) -> None:
    """While a long batch runs, the buffer of the agent fills up, and no event comes."""
    planning = make()
    agent = caught_up(planning)
    agent.send(event(planning.client._subscriptions.shards[SPLIT].generation, cut_point(9)))
    planning.until(lambda: planning.client.progress(SPLIT, After("5")).cut_points)  # type: ignore[union-attr]
    planning.now += 600.0
    agent.answer()
    planning.until(lambda: planning.client.agents([SPLIT]))

    progress = planning.client.progress(SPLIT, After("5"))
    assert progress is not None
    assert progress.cut_points == (cut_point(9),)
    planning.client.follow({SPLIT: After("9")})
    assert planning.client.progress(SPLIT, After("9")) is None


def test_the_end_of_a_shard_stays_its_end(make: Callable[..., Planning]) -> None:
    """No event follows it."""
    planning = make()
    agent = planning.listening()
    agent.send(event(planning.subscribed(), cut_point(5), first="5", ended=True))
    planning.until(lambda: planning.client.progress(SPLIT, HORIZON))
    planning.client.follow({SPLIT: After("5")})
    planning.now += 600.0
    agent.answer()
    planning.until(lambda: planning.client.hub)

    progress = planning.client.progress(SPLIT, After("5"))
    assert progress is not None
    assert progress.has_ended


# --- agents that can't start ----------------------------------------------------------------------------


def test_an_agent_that_cannot_start_is_tried_less_and_less_often(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """After 2 s, 4 s and so on up to a minute. The log says so once."""
    caplog.set_level(logging.INFO, LOG)
    planning = make()
    starts: list[int] = []
    for second in range(400):
        planning.client.follow({SPLIT: HORIZON})
        if len(planning.agents) > len(starts):
            starts.append(second)
            planning.agent.die()
            planning.until(lambda: not planning.client._supervisor.is_running)
            planning.until(lambda: planning.agent.ended is not None)
            planning.until(lambda: planning.client._supervisor._failed_starts == len(starts))
        planning.now += 1.0

    assert [after - before for before, after in itertools.pairwise(starts)] == [
        *(2, 4, 8, 16, 32),
        *(60 for _ in starts[6:]),
    ]
    assert len(starts) > 8
    started, ended = caplog.messages
    assert started == "clicks: started the agent (process 4711)"
    assert ended == (
        "clicks: the agent has ended with exit code -9 before it listened; polling, next attempt in "
        "2 s, later ones every 60 s at most"
    )


def test_the_log_says_why_an_agent_cannot_start(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """In the agent's own words, and once for each reason."""
    caplog.set_level(logging.WARNING, LOG)
    planning = make()
    for reason in ("it can't listen at 10.9.9.9", "it can't listen at 10.9.9.9", "no port is free"):
        planning.client.start()
        failed = planning.agent
        failed.send(StartFailed(reason))
        failed.die()
        planning.until(lambda agent=failed: agent.ended is not None)  # type: ignore[misc]
        planning.until(lambda why=reason: lines(caplog, why))  # type: ignore[misc]
        planning.now += 60.0

    first, second = caplog.messages
    assert first == (
        "clicks: the agent can't start: it can't listen at 10.9.9.9; polling, next attempt in 2 s, later "
        "ones every 60 s at most"
    )
    assert "the agent can't start: no port is free; polling" in second


def test_one_that_listens_is_replaced_soon(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """The cause of the failed starts has passed. The log says that, too."""
    caplog.set_level(logging.INFO, LOG)
    planning = make()
    for _ in range(4):
        planning.client.start()
        failed = planning.agent
        failed.die()
        planning.until(lambda agent=failed: agent.ended is not None)  # type: ignore[misc]
        planning.until(lambda: len(lines(caplog, "before it listened")) == 1)
        planning.now += 60.0
    planning.client.start()
    agent = planning.agent
    agent.send(Listening(Server("127.0.0.1", 1, b"start")))
    planning.until(lambda: planning.client.hub)
    assert len(lines(caplog, "listens, after 4 that did not")) == 1

    agent.die()
    planning.until(lambda: agent.ended is not None)
    planning.now += 2.0
    planning.client.start()
    assert planning.agent is not agent


def test_a_process_that_cannot_be_started_fails_nothing(
    make: Callable[..., Planning], caplog: pytest.LogCaptureFixture
) -> None:
    """No memory, no process ids, no descriptors: shards are polled. Each other reason is logged once."""
    planning = make()
    for error in ("no memory", "no memory", "no descriptors"):
        planning.launch_error = OSError(error)
        planning.client.follow({SPLIT: HORIZON})
        assert planning.client.progress(SPLIT, HORIZON) is None
        planning.now += 60.0

    assert [line.split("; ")[0] for line in lines(caplog, "can't be started")] == [
        "clicks: the agent can't be started: no memory",
        "clicks: the agent can't be started: no descriptors",
    ]
    planning.launch_error = None
    planning.client.follow({SPLIT: HORIZON})
    assert len(planning.agents) == 1


def test_an_agent_that_sends_nonsense_is_replaced(make: Callable[..., Planning]) -> None:
    """The thread that receives from it must not just end: otherwise the agent's last message would stay valid
    for ever.
    """
    planning = make()
    agent = caught_up(planning)
    agent.peer.send(b"nonsense")
    planning.until(lambda: agent.ended is not None)

    assert planning.client.progress(SPLIT, After("5")) is None
    planning.now += 2.0
    planning.client.start()
    assert len(planning.agents) == 2
