"""Nobody's silence, load or end stops the others: rows keep coming, and on time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.model import FaultPlan, KinesisModel, Laws, ManualClock, ModelLog
from integration.model.log import BACKOFFS
from memory_log import SECOND, hash_key
from pushed_agent import PushedAgent, SideBySideAgent
from query import Agent, Query, at_horizon, check_exactly_once

from sluice.source.logs.stream_log import Record
from sluice.source.model.splits import SplitId
from sluice.source.settings import NO_LIMITS, Limits

AGENTS: Mapping[str, Callable[[ModelLog], Agent] | None] = {
    "none": None,
    "polls": SideBySideAgent,
    "subscribes": PushedAgent,
}
READS = ("GetRecords", "GetShardIterator")
LONGEST_GAP = 10.0
"""Seconds."""
DISORDER = 50_000
"""Arrival times fall by up to 20 ms within a shard (microseconds)."""

STATES = ("idle", "slow", "trickling", "silent", "throttled", "throttled reads")
"""Of the other shards. Reads of a slow one take a second; subscriptions to a silent one say nothing; of a
throttled one four reads in five are refused, and calls that subscribe to it, or reads alone."""


class Neighbours:
    """A query over a busy shard, which gets a record every second, and others.

    Attributes:
        states: of the other shards, in the order of their hash keys.
        gaps: the times at which no row had come for `LONGEST_GAP`, though nothing allows that.
    """

    def __init__(
        self, publisher: str, others: Sequence[str], *, drift: int | None, limits: Limits, seed: int = 0
    ) -> None:
        self.rng = random.Random(seed)
        laws = Laws(retention=False, shards_expire=False, empty_pages=0)  # any number of those may come
        self.model = KinesisModel(laws, ManualClock(), seed, faults=FaultPlan(callback=self._fault))
        once = {name: replace(BACKOFFS[name], repeats_throttled=False) for name in READS}
        self.log = ModelLog(self.model, backoffs={**BACKOFFS, **once})  # as `KinesisLog.for_planning`
        self.drift, self.limits = drift, limits
        self.states: dict[str, str] = {}
        self._lost: set[str] = set()
        self._shards = self.log.create("s", 1 + len(others))
        self.log.pass_time(10)
        make = AGENTS[publisher]
        self.agent = None if make is None else make(self.log)
        self.log.pass_time(10)  # the consumer becomes active
        self.query = Query(self.log, initial=at_horizon, max_drift=drift, agent=self.agent)
        self.records: list[Record] = []
        for split in self._shards:
            self._put(split)
        self.busy = self._shards[0]
        for index, state in enumerate(others):
            self.set_state(index, state)
        self._row_at = self._readable_at = self.log.monotonic()
        self.gaps: list[float] = []

    def set_state(self, index: int, state: str) -> None:
        split = self._shards[1 + index]
        self.states[split.shard] = state
        if state in ("silent", "throttled"):  # its subscription is lost, and the next one takes its time
            self._lost.add(split.shard)
        if state.startswith("throttled"):
            self.log.expire_iterators()

    def close(self, index: int) -> None:
        split = self._shards[1 + index]
        if self.log.shards[split].ending_sequence is None:
            for child in self.log.split(split):
                self.states[child.shard] = "idle"

    def run(self, seconds: int) -> None:
        """A trigger a second, by the clock of the service, unless planning or reading takes longer."""
        for _ in range(seconds):
            self._put(self.busy)
            for shard, state in self.states.items():
                split = SplitId("s", shard)
                is_open = self.log.shards[split].ending_sequence is None
                if state == "trickling" and is_open and self.rng.random() < 0.2:
                    self._put(split)
                if state == "silent":
                    for subscription in self.model.subscriptions("s", shard):
                        subscription.fall_silent()
            self._run_batch()
            self.log.pass_time(1.0)

    def check(self) -> None:
        assert not self.gaps
        self.states = dict.fromkeys(self.states, "idle")
        self.log.pass_time(20)
        self.query.run_to_end(self.limits, empty_triggers=8, step=3.0)
        check_exactly_once(self.query, self.records)
        if self.drift is not None:
            assert lateness(self.query) <= self.drift + DISORDER

    def _run_batch(self) -> None:
        rows = self.query.run_batch(self.limits)
        now = self.log.monotonic()
        if rows and any(rows.values()):
            self._row_at = now
        # With `maxDrift` the others wait for a shard of which nothing can be known.
        if self.drift is not None and any(map(self._is_unknown, self.states)):
            self._readable_at = now
        if now - max(self._row_at, self._readable_at) > LONGEST_GAP:
            self.gaps.append(now)

    def _is_unknown(self, shard: str) -> bool:
        """Whether a shard may be refused to readers, and no subscription tells of it."""
        state = self.states[shard]
        has_events = isinstance(self.agent, PushedAgent) and shard not in self._lost
        return state == "throttled" or (state == "throttled reads" and not has_events)

    def _put(self, split: SplitId) -> None:
        low, high = self.log.shards[split].hash_range
        keys = (str(self.rng.random()) for _ in iter(int, 1))
        key = next(key for key in keys if low <= hash_key(key) <= high)
        self.records.append(self.log.put("s", key))

    def _fault(self, operation: str, request: Mapping[str, Any]) -> str | None:
        if operation == "GetRecords":
            iterator = self.model._core.unseal(request["ShardIterator"])
            shard = f"shardId-{iterator[3]:012d}" if iterator else ""
        else:
            shard = request.get("ShardId", "")
        state = self.states.get(shard, "")
        if operation in READS:
            if state == "slow" and operation == "GetRecords":
                self.log.pass_time(1.0)
            if state.startswith("throttled") and self.rng.random() < 0.8:
                return "ProvisionedThroughputExceededException"
        if operation == "SubscribeToShard" and state == "throttled":
            return "LimitExceededException"
        return "silence" if operation == "SubscribeToShard.event" and state == "silent" else None


def lateness(query: Query) -> int:
    """By how much a row came later than one of an earlier batch (microseconds), at most."""
    latest = worst = 0
    for rows in query.batches:
        arrivals = [record.arrival for records in rows.values() for record in records]
        if arrivals:
            worst = max(worst, latest - min(arrivals))
            latest = max(latest, *arrivals)
    return worst


SPAN = st.tuples(st.integers(0, 3), st.sampled_from([*STATES, "closed"]), st.integers(1, 30))
"""The number of a shard, what becomes of it, and for how many seconds nothing else changes."""


@pytest.mark.parametrize("publisher", AGENTS)
def test_an_idle_shard_holds_nobody_back(publisher: str) -> None:
    """Through two renewals of its subscription: each begins with an event, and then one comes every 5 s."""
    neighbours = Neighbours(publisher, ["idle"], drift=10 * SECOND, limits=NO_LIMITS)
    neighbours.run(600)
    neighbours.check()


def test_a_drift_that_is_shorter_than_the_pause_between_events_delays_no_row() -> None:
    """The planner reads the idle shard, where its last event does not tell enough."""
    neighbours = Neighbours("subscribes", ["idle"], drift=SECOND, limits=NO_LIMITS)
    neighbours.run(20)
    for _ in range(60):
        neighbours.run(1)
        assert len(neighbours.query.numbers()) >= len(neighbours.records) - 3
    neighbours.check()


@settings(max_examples=40)
@given(
    publisher=st.sampled_from(list(AGENTS)),
    others=st.lists(st.sampled_from(STATES), min_size=1, max_size=3),
    spans=st.lists(SPAN, min_size=1, max_size=4),
    drift=st.sampled_from([None, 2, 10, 60]),
    limits=st.sampled_from(
        [NO_LIMITS, NO_LIMITS, Limits(records=20), Limits(records=1), Limits(span=3 * SECOND)]
    ),
    seed=st.integers(0, 10_000),
)
def test_rows_keep_coming_whatever_becomes_of_other_shards(  # noqa: PLR0917 - Hypothesis names them
    publisher: str,
    others: Sequence[str],
    spans: Sequence[tuple[int, str, int]],
    drift: int | None,
    limits: Limits,
    seed: int,
) -> None:
    """A shard gets a record every second. Its rows come at least every ten seconds, and on time."""
    span = None if drift is None else drift * SECOND
    neighbours = Neighbours(publisher, others, drift=span, limits=limits, seed=seed)
    neighbours.run(20)
    for index, state, seconds in spans:
        if state == "closed":
            neighbours.close(index % len(others))
        else:
            neighbours.set_state(index % len(others), state)
        neighbours.run(seconds)
    neighbours.check()
