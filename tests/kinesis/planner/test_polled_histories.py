"""Queries whose shards an agent polls read what they read without it, through any history."""

from __future__ import annotations

import functools
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from integration.model import KinesisModel, Laws, ManualClock, ModelLog
from polled_agent import SETTINGS, AgentFaults, PolledAgent
from query import Query, check_exactly_once
from scenario import LAWS, STEP, Scenario

from sluice.kinesis.shared.protocol import FAR_BEHIND
from sluice.source.logs.stream_log import Record

ALL_LAWS = [
    LAWS,
    replace(LAWS, page_records=3),
    replace(LAWS, tip_before_records=0.3),
    replace(LAWS, empty_pages=0, late_tip=0.0),
]
NONE = AgentFaults()
MANY = AgentFaults(die=0.1, lag=0.2, silence=0.1, refuse=0.1)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10_000),
    shards=st.integers(1, 4),
    laws=st.sampled_from(ALL_LAWS),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05]),
    pages=st.sampled_from([1, 3, 8]),
    most_behind=st.sampled_from([1.0, 10.0, 1e6]),
    faults=st.sampled_from([NONE, MANY]),
    steps=st.lists(STEP, max_size=25),
)
def test_every_record_arrives_once_in_order(  # noqa: PLR0917 - Hypothesis names them
    seed: int,
    shards: int,
    laws: Laws,
    fault_rate: float,
    pages: int,
    most_behind: float,
    faults: AgentFaults,
    steps: list[tuple[object, ...]],
) -> None:
    """Through reshards, throttling, expired iterators, restarts and limits, and any failure of the agent.
    Each batch has the same rows if it is read again without it.
    """
    agent = functools.partial(
        PolledAgent,
        pages=pages,
        faults=faults,
        seed=seed,
        settings=replace(SETTINGS, most_behind=most_behind),
    )
    Scenario(seed, shards, fault_rate, laws=laws, agent=agent).run(steps, empty_triggers=6)


def polled_query(laws: Laws = LAWS, *, faults: AgentFaults = NONE) -> tuple[Query, PolledAgent, ModelLog]:
    log = ModelLog(KinesisModel(laws, ManualClock(), 0))
    log.create("s", 1)
    agent = PolledAgent(log, faults=faults)
    return Query(log, agent=agent), agent, log


def put(log: ModelLog, count: int) -> list[Record]:
    return [log.put("s", f"key-{number}") for number in range(count)]


def follow_the_tip(query: Query, log: ModelLog, triggers: int) -> list[Record]:
    """Records come a few at a time, and a batch takes them."""
    records = []
    for _ in range(triggers):
        records += put(log, 5)
        query.run_batch()
        log.pass_time(0.5)
    return records


def test_near_the_tip_nobody_but_the_agent_reads() -> None:
    """Once the agent has a shard, tasks get their ranges from it, and the planner reads nothing."""
    query, agent, log = polled_query()
    records = follow_the_tip(query, log, 10)
    served, reads_of_others = agent.served, len(log.limits)

    records += follow_the_tip(query, log, 30)

    assert agent.served - served >= 25
    assert len(log.limits) == reads_of_others
    query.run_to_end()
    check_exactly_once(query, records)


def test_each_shard_is_read_at_most_five_times_a_second() -> None:
    """By agent, planner and tasks together: the service refuses nothing, from the start on."""
    query, agent, log = polled_query()
    follow_the_tip(query, log, 60)

    assert agent.served
    assert log.model.refusals == {}


def test_a_backlog_is_left_to_tasks() -> None:
    """The agent sees how far the tip is, reads no more, and takes over when the tip is near."""
    query, agent, log = polled_query()
    records = put(log, 500)
    query.run_batch()
    log.pass_time(300)
    records += put(log, 500)
    log.pass_time(20)
    query.run_batch()
    assert (agent.served, set(agent.ended)) == (0, {FAR_BEHIND})

    query.run_to_end(empty_triggers=12)
    records += follow_the_tip(query, log, 30)

    assert agent.served
    query.run_to_end()
    check_exactly_once(query, records)


def test_an_agent_that_is_killed_costs_no_record() -> None:
    """Before a trigger, or while a task reads from it."""
    query, agent, log = polled_query(faults=AgentFaults(die=0.3))
    records = follow_the_tip(query, log, 60)

    query.run_to_end()
    assert agent.served
    check_exactly_once(query, records)
