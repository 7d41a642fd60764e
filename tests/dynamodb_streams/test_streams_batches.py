"""Every record once, in order, in exactly the batch that its offsets name, for any fault."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from failing_reads import FailingReads
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.model import SECOND, FaultPlan
from integration.streams_model import Laws
from streams_query import TABLE, StreamsQuery, all_numbers, new_model, put_many

from sluice.dynamodb_streams.options import EMPTY_PAGES_AT_TIP
from sluice.source.probing import session as probe_session
from sluice.source.settings import Limits

LAWS = Laws(retention=None)
"""Nothing expires: other tests cover losses."""
LIMITS = st.sampled_from(
    [
        Limits(),
        Limits(),
        Limits(records=1),
        Limits(records=40),
        Limits(records=2000),
        Limits(bytes=2_000),
        Limits(span=2 * SECOND),
        Limits(records=300, bytes=20_000, span=5 * SECOND),
    ]
)
STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 300), st.sampled_from([0.0, 0.001, 0.1])),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 12.0, 1000.0, 15_000.0])),
    st.tuples(st.just("roll"), st.integers(0, 100), st.integers(1, 2)),
    st.tuples(st.just("batch"), LIMITS, st.booleans()),
    st.tuples(st.just("batch"), LIMITS, st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("expire")),
    st.tuples(st.just("available"), LIMITS),
)


class History(FailingReads):
    """Takes steps, and checks what the query has read against what the model has taken."""

    THROTTLED = "LimitExceededException"

    def __init__(self, seed: int, shards: int, fault_rate: float, laws: Laws, page_limit: int) -> None:
        self.rng = random.Random(seed)
        self.fault_rate = fault_rate
        self.model = new_model(laws, seed, shards=shards, faults=FaultPlan(callback=self.fault))
        self.arn = self.model.call("ListStreams", {})["Streams"][0]["StreamArn"]
        self.query = StreamsQuery(self.model, page_limit=page_limit)

    def run(self, steps: Iterable[tuple[object, ...]]) -> None:
        """Takes all steps, reads without faults until nothing is new, and checks every batch."""
        for step in steps:
            self.step(step)
        self.fault_rate = 0.0
        self.model.clock.advance(20)
        # A trigger resumes after the empty pages where the last one stopped.
        self.query.run_to_end(empty_triggers=6 if self.model.laws.empty_pages < EMPTY_PAGES_AT_TIP else 50)
        assert self.query.numbers() == all_numbers(self.model, [self.arn])
        self.query.check_order(self.model.parents(self.arn))
        for number, rows in enumerate(self.query.batches):
            assert self.query.read(number) == rows

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("put", int(count), float(pause)):
                put_many(self.model, count, per_second=1 / pause if pause else 1e9)
            case ("wait", float(seconds)):
                self.model.clock.advance(seconds)
            case ("roll", int(index), int(children)):
                shards = self.model.open_shards(TABLE)
                if len(shards) < 8:
                    self.model.roll(TABLE, shards[index % len(shards)], children=children)
            case ("batch", Limits() as limits, bool(crash)):
                self.run_batch(limits, crash=crash)
            case ("restart",):
                self.query.restart()
            case ("expire",):
                self.model.expire_iterators()
            case ("available", Limits() as limits):
                self.query.enumerator.stop_at_available()
                for _ in range(3):
                    self.run_batch(limits)
                self.query.restart()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 4),
    fault_rate=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    laws=st.sampled_from(
        [replace(LAWS, empty_pages=e, portion=p) for e, p in ((0, 10**9), (7, 400), (40, 90))]
    ),
    steps=st.lists(STEP, max_size=14),
)
def test_every_record_is_in_exactly_one_batch(
    seed: int, shards: int, fault_rate: float, laws: Laws, steps: list[tuple[object, ...]]
) -> None:
    """Records, roll-overs, splits, throttles, expired iterators, crashes and restarts in any order."""
    History(seed, shards, fault_rate, laws, page_limit=7 if seed % 3 == 0 else 1_000).run(steps)


def test_latest_reads_what_comes_and_nothing_else() -> None:
    """Also a shard that got no record before a restart, and children of shards that were closed already."""
    model = new_model(Laws(), 11, shards=4)
    put_many(model, 4000)
    model.roll(TABLE)
    put_many(model, 400, name="old")
    model.clock.advance(120)
    query = StreamsQuery(model, start="LATEST")
    query.run_batch()
    new = put_many(model, 2, name="few")
    query.run_batch()
    query.restart()
    model.clock.advance(120)
    new += put_many(model, 50, name="new")
    model.roll(TABLE)
    new += put_many(model, 50, name="newer")
    query.run_to_end()

    assert query.numbers() == new


def test_latest_reads_no_old_records() -> None:
    """Neither planning nor tasks read 20,000 old records to leave them out: there is no iterator by time."""
    model = new_model(Laws(empty_pages=0, empty_tail=0, portion=10**9))
    put_many(model, 20_000)
    query = StreamsQuery(model, start="LATEST")
    query.run_batch()
    new = put_many(model, 5, name="new")
    model.clock.advance(10)
    query.run_batch()
    query.restart()
    before = model.calls["GetRecords"]
    assert query.read(-1) == query.batches[-1]

    assert query.numbers() == new
    assert model.calls["GetRecords"] - before == 1
    assert before <= 2 * EMPTY_PAGES_AT_TIP + 10


def test_a_shard_that_closes_before_its_first_record_was_seen() -> None:
    """The start at LATEST holds: records from a moment before the start are not read."""
    model = new_model(Laws())
    put_many(model, 30, per_second=10, name="old")
    model.roll(TABLE)  # closed shards have nothing later
    put_many(model, 30, per_second=10, name="older")
    model.clock.advance(3)
    query = StreamsQuery(model, start="LATEST")
    query.log_start()
    new = put_many(model, 3, name="new")
    model.roll(TABLE)
    model.clock.advance(30)
    query.run_to_end()

    assert query.numbers() == new


def test_a_trickle_costs_few_reads() -> None:
    """A record a second: no trigger reads a run of empty pages to its end to learn that nothing follows."""
    model = new_model(Laws(shard_life=None))
    query = StreamsQuery(model)
    query.run_batch()
    put: list[int] = []
    planned = read = 0
    for turn in range(60):
        put += put_many(model, 1, per_second=1, name=f"turn-{turn}")
        before, batches = model.calls["GetRecords"], len(query.batches)
        query.run_batch()
        planned += model.calls["GetRecords"] - before
        read += len(query.batches) - batches
    query.run_to_end()

    assert query.numbers() == put
    assert read > 40
    assert planned <= 4 * 60


def test_hours_of_a_busy_shard_are_planned_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with Trigger.AvailableNow reads each open shard to its tip; it does not keep every record's
    number.
    """
    monkeypatch.setattr(probe_session, "_MOST_CUT_POINTS", 100)
    model = new_model(Laws(shard_life=None), shards=2)
    put = put_many(model, 8_000)
    model.clock.advance(5)  # the last second of a busy shard is left to the next run
    query = StreamsQuery(model)
    query.log_start()
    query.enumerator.stop_at_available()
    later: list[int] = []
    while query.run_batch(Limits(records=1_000)):
        later = later or put_many(model, 50, name="later")
        assert all(len(state.cut_points) < 2_000 for state in query.enumerator._splits.states.values())

    assert query.numbers() == put
    assert all(sum(map(len, rows.values())) <= 1_000 + 2 * 1_000 for rows in query.batches)
    query.restart()
    query.run_to_end()
    assert query.numbers() == put + later
