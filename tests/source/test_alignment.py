"""Rows come on time: no batch leaves a shard behind."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from integration.model import FaultPlan, KinesisModel, Laws, ManualClock, ModelLog
from integration.model.log import BACKOFFS, NO_RETRIES
from memory_log import S0, SECOND, THROTTLED, AnyLog, MemoryLog, hash_key, new_log, put_to
from query import Query, at_horizon, check_exactly_once, pushed_query, wait_for_subscriptions

from sluice.errors import ServiceError
from sluice.source.logs.stream_log import Record
from sluice.source.model.splits import SplitId
from sluice.source.settings import NO_LIMITS, Limits

MINUTE = 60 * SECOND
DISORDER = 50_000
"""Arrival times fall by up to 20 ms within a shard (microseconds)."""


def lateness(query: Query) -> int:
    """By how much a row came later than one of an earlier batch (microseconds), at most."""
    latest = worst = 0
    for rows in query.batches:
        arrivals = [record.arrival for records in rows.values() for record in records]
        if arrivals:
            worst = max(worst, latest - min(arrivals))
            latest = max(latest, *arrivals)
    return worst


def open_shards(log: AnyLog) -> list[SplitId]:
    shards = [shard for shard in log.shards.values() if shard.ending_sequence is None]
    return [shard.id for shard in sorted(shards, key=lambda shard: shard.hash_range)]


def put_hour(log: AnyLog, rng: random.Random, *, minutes: int = 60, a_minute: int = 5) -> list[Record]:
    records = []
    for _ in range(minutes):
        records += [log.put("s", str(rng.random())) for _ in range(a_minute)]
        log.pass_time(60)
    return records


def resharded_backlog(log: AnyLog, generations: int = 4) -> list[Record]:
    """An hour of records for each generation of shards."""
    rng = random.Random(1)
    records = put_hour(log, rng)
    for generation in range(generations - 1):
        shards = open_shards(log)
        if generation % 2:
            log.merge(shards[0], shards[1])
        else:
            log.split(shards[0])
        records += put_hour(log, rng)
    return records


@pytest.mark.parametrize("generations", [2, 5, 10])
def test_a_backlog_over_many_reshards_is_one_batch(generations: int) -> None:
    """It used to be one batch for each generation of shards, each an hour behind the one before."""
    log = new_log(2)
    query = Query(log)
    records = resharded_backlog(log, generations)
    query.run_to_end()
    check_exactly_once(query, records)
    assert len([rows for rows in query.batches if any(rows.values())]) == 1


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=50), Limits(span=5 * MINUTE)])
def test_a_large_family_is_cut_by_time(limits: Limits) -> None:
    """Each of its generations gets its own batches, and the other shards end where the first one ends."""
    log = new_log(4)
    query = Query(log, shards_per_task=2)
    records = resharded_backlog(log, 6)
    query.run_to_end(limits)
    check_exactly_once(query, records)
    assert lateness(query) <= DISORDER


@pytest.mark.parametrize("limits", [Limits(records=7), Limits(records=100), Limits(span=10 * MINUTE)])
def test_limits_keep_children_with_the_others(limits: Limits) -> None:
    log = new_log(3)
    query = Query(log)
    records = resharded_backlog(log, 6)
    query.run_to_end(limits)
    check_exactly_once(query, records)
    assert lateness(query) <= DISORDER


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=60)])
@pytest.mark.parametrize("is_pushed", [False, True])
def test_the_others_wait_for_a_shard_that_is_throttled(
    limits: Limits, caplog: pytest.LogCaptureFixture, *, is_pushed: bool
) -> None:
    """And resume when it does. The log says which shard they wait for."""
    caplog.set_level(logging.INFO)
    log = MemoryLog()
    log.create("s", 3)
    if is_pushed:
        query, _ = pushed_query(log)
        query.max_drift = MINUTE
        query.restart()
    else:
        query = Query(log, max_drift=MINUTE)
    slow = S0
    records = put_hour(log, random.Random(2), minutes=3)
    query.run_to_end(limits)
    is_throttled = [True]
    log.fault = lambda _, split: THROTTLED if split == slow and is_throttled[0] else None
    if is_pushed:
        assert query.agent is not None
        query.agent.subscriptions.lose()
    for _ in range(20):
        records += put_hour(log, random.Random(3), minutes=1)
        query.run_batch(limits)
    others = [r.arrival for split, rows in query.by_split().items() if split != slow for r in rows]
    mine = [r.arrival for r in query.by_split()[slow]]
    assert is_pushed or max(others) - max(mine) <= 3 * MINUTE
    is_throttled[0] = False
    query.run_to_end(limits)
    check_exactly_once(query, records)
    assert lateness(query) <= MINUTE
    assert is_pushed or f"{slow}: its unread records hold back" in caplog.text


def test_shards_with_long_events_do_not_wait_for_each_other_for_ever() -> None:
    """An event that covers more than the drift is not used, and its shard is probed. What the probe finds has
    to stay until the next trigger: probes of other shards may read only then.
    """
    log = new_log(4)
    query, _ = pushed_query(log, event_size=1000)
    query.max_drift = MINUTE
    query.restart()
    records = put_hour(log, random.Random(1), minutes=1)
    wait_for_subscriptions(query)
    records += put_hour(log, random.Random(2))
    failures = iter([THROTTLED] * 4)
    log.fault = lambda _, split: next(failures, None) if split == S0 else None
    for _ in range(300):
        query.run_batch()
        log.pass_time(0.1)
    check_exactly_once(query, records)
    assert lateness(query) <= MINUTE


def test_a_shard_without_records_holds_nobody_back() -> None:
    log = new_log(2)
    idle, busy = log.shards
    query = Query(log, max_drift=SECOND)
    records: list[Record] = []
    for _ in range(30):
        records += put_to(log, busy, 3)
        log.pass_time(2)
        query.run_batch()
        log.pass_time(2)
    assert idle not in query.by_split()
    assert len(query.rows_since(0)) >= len(records) - 6


def skewed_reshard(log: MemoryLog, skew: int) -> list[Record]:
    """One of two shards is split; the first record of its child arrives `skew` microseconds too early, by the
    clock of the child's host.
    """
    begin = log.now
    first, other = log.create("s", 2)
    # Both open at a time, so that each has a key.
    (key, other_key) = (
        next(k for k in map(str, range(100)) if low <= hash_key(k) <= high)
        for low, high in (log.shards[first].hash_range, log.shards[other].hash_range)
    )
    log.pass_time(60)
    records = [log.put("s", key, arrival=begin + n * SECOND // 10) for n in range(20)]
    records += [log.put("s", other_key, arrival=begin + n * SECOND // 10 - SECOND // 20) for n in range(40)]
    log.split(first)
    last = begin + 19 * SECOND // 10
    return records + [log.put("s", key, arrival=last - skew + n * SECOND // 10) for n in range(20)]


@pytest.mark.parametrize(
    "limits", [NO_LIMITS, Limits(records=1), Limits(records=7), Limits(bytes=100), Limits(span=SECOND // 10)]
)
@pytest.mark.parametrize("drift", [None, SECOND])
@pytest.mark.parametrize("skew", [0, SECOND // 2, 5 * SECOND])
@pytest.mark.parametrize("shards_per_task", [1, 16])  # 1: the children wait for a later batch
@pytest.mark.parametrize("ends_at_tip", [False, True])
def test_a_child_whose_host_has_a_late_clock_stops_nothing(
    limits: Limits, drift: int | None, skew: int, shards_per_task: int, *, ends_at_tip: bool
) -> None:
    """Its first record seems to be older than the last of its parent, which has to be read before it."""
    log = MemoryLog()
    records = skewed_reshard(log, skew)
    query = Query(log, max_drift=drift, shards_per_task=shards_per_task)
    if ends_at_tip:
        query.enumerator.stop_at_available()
        query.run_while_new(limits)
    else:
        query.run_to_end(limits)
    check_exactly_once(query, records)
    if drift is not None:
        assert lateness(query) <= drift + skew


@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=1), Limits(span=SECOND)])
def test_arrival_times_that_fall_by_more_than_the_drift_stop_nothing(limits: Limits) -> None:
    """A batch of one record leaves one behind that arrived much earlier. It is read all the same."""
    log = new_log()
    query = Query(log, max_drift=SECOND)
    records = [log.put("s", "key", arrival=log.now - back * SECOND) for back in (0, 5, 0, 9, 3)]
    log.pass_time(60)
    query.run_to_end(limits)
    check_exactly_once(query, records)


FAILURE_RATE = st.sampled_from([0.0, 0.1, 0.3, 0.6])
STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("wait"), st.sampled_from([1, 30, 300, 1800])),
    st.tuples(st.just("split"), st.integers(0, 100)),
    st.tuples(st.just("split twice"), st.integers(0, 100)),
    st.tuples(st.just("merge"), st.integers(0, 100)),
    st.tuples(st.just("batch"), st.integers(1, 5)),
    st.tuples(st.just("throttle"), st.integers(0, 100)),
    st.tuples(st.just("fail"), FAILURE_RATE),
    st.tuples(st.just("restart")),
)
BACKLOG_STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("put"), st.integers(1, 60)),
    st.tuples(st.just("split"), st.integers(0, 100)),
    st.tuples(st.just("split twice"), st.integers(0, 100)),
    st.tuples(st.just("merge"), st.integers(0, 100)),
)
READS_ONCE = {operation: NO_RETRIES[operation] for operation in ("GetRecords", "GetShardIterator")}


@dataclass(frozen=True)
class Service:
    """What a history takes place in.

    Attributes:
        seed: of all that is random.
        shards: how many there are at first.
        failure_rate: the probability that a read fails when the query has started, until a step changes it.
        listing_gaps: see `Laws`.
        pauses: between two records (seconds).
        clocks: by how much the clocks of its hosts may be behind (seconds). Each shard has a host, and gets
            another one from time to time.
    """

    seed: int
    shards: int
    failure_rate: float = 0.0
    listing_gaps: float = 0.0
    pauses: Sequence[float] = (0.0, 0.01, 5.0)
    clocks: Sequence[float] = (0.0,)


SERVICE = st.builds(
    Service,
    st.integers(0, 2**32),
    st.integers(1, 4),
    FAILURE_RATE,
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([(0.0, 0.01, 5.0), (1.0, 3.0, 5.0)]),
    st.sampled_from([(0.0,), (0.0,), (0.0, 0.5), (0.0, 0.5, 3.0, 90.0)]),
)


class History:
    """Any order of records, reshards, throttled shards, reads that fail, batches and restarts.

    The query starts with the first batch, so a backlog may be there, and shards that were closed empty.
    """

    def __init__(self, service: Service, limits: Limits, drift: int | None) -> None:
        self.service = service
        self.rng = random.Random(service.seed)
        self.throttled: set[str] = set()
        self.failure_rate = 0.0
        laws, faults = Laws(listing_gaps=service.listing_gaps), FaultPlan(callback=self.fault)
        self.model = KinesisModel(laws, ManualClock(), service.seed, faults=faults)
        # A plan sees each failure: with retries it would hardly ever see one.
        self.log = ModelLog(self.model, backoffs={**BACKOFFS, **READS_ONCE})
        self.log.create("s", service.shards)
        self.log.pass_time(10)
        self.limits = limits
        self.pauses = service.pauses
        self.query = Query(self.log, initial=at_horizon, max_drift=drift, shards_per_task=4)
        self.records: list[Record] = []

    def fault(self, operation: str, request: object) -> str | None:
        shard = request.get("ShardId") if isinstance(request, dict) else None
        if operation == "GetShardIterator" and shard in self.throttled:
            return "ProvisionedThroughputExceededException"
        if operation in READS_ONCE and self.rng.random() < self.failure_rate:
            return self.rng.choice(["InternalFailure", "ProvisionedThroughputExceededException"])
        return None

    def take(self, steps: Iterable[tuple[object, ...]]) -> None:
        for step in steps:
            match step:
                case ("put", int(count)):
                    self.put(count)
                case ("wait", int(seconds)):
                    self.log.pass_time(seconds)
                case ("split" | "split twice" | "merge" as change, int(index)):
                    self.reshard(change, index)
                case ("batch", int(count)):
                    for _ in range(count):
                        self.run_batch()
                        self.log.pass_time(3)
                case ("throttle", int(index)):
                    shards = list(self.log.shards)
                    self.throttled = {shards[index % len(shards)].shard} if index < 70 else set()
                    self.log.expire_iterators()
                case ("fail", float(rate)):
                    self.failure_rate = rate
                case ("restart",):
                    self.query.restart()
        self.throttled, self.failure_rate = set(), 0.0
        self.query.run_to_end(self.limits, empty_triggers=8, step=12.0)

    def reshard(self, change: str, index: int) -> None:
        shards = open_shards(self.log)
        if change == "merge":
            index %= max(1, len(shards) - 1)
            if len(shards) > 1:
                self.log.merge(shards[index], shards[index + 1])
            return
        children = self.log.split(shards[index % len(shards)])
        if change == "split twice":  # leaves two closed shards without records
            for child in children:
                self.log.split(child)

    def put(self, count: int) -> None:
        for _ in range(count):
            key = str(self.rng.random())
            self.records.append(self.log.put("s", key, arrival=self.arrival(key)))
            self.log.pass_time(self.rng.choice(self.pauses))

    def arrival(self, key: str) -> int | None:
        """When the host of its shard says that a record arrives; None: by the model's own clock."""
        if self.service.clocks == (0.0,):
            return None
        where = hash_key(key)
        shards = (self.log.shards[shard] for shard in open_shards(self.log))
        shard = next(each.id for each in shards if each.hash_range[0] <= where <= each.hash_range[1])
        host = f"{self.service.seed} {shard} {len(self.records) // 20}"
        behind = random.Random(host).choice(self.service.clocks)
        return (self.log.now - int(behind * SECOND)) // 1000 * 1000

    def run_batch(self) -> None:
        """Plans under faults, and reads without: a task waits for as long as it takes."""
        if not self.query.offsets:
            self.query.log_start()
        try:
            end = self.query.plan(self.limits)
        except ServiceError as error:
            assert error.retryable  # noqa: PT017
            return
        faults = self.throttled, self.failure_rate
        self.throttled, self.failure_rate = set(), 0.0
        if end.to_json() != self.query.offsets[-1]:
            self.query.run_planned(end)
        self.throttled, self.failure_rate = faults


@given(
    backlog=st.lists(BACKLOG_STEP, max_size=6),
    steps=st.lists(STEP, min_size=1, max_size=16),
    service=SERVICE,
    limits=st.sampled_from(
        [NO_LIMITS, NO_LIMITS, Limits(records=1), Limits(records=40), Limits(bytes=200), Limits(span=MINUTE)]
    ),
    drift=st.sampled_from([None, SECOND, MINUTE, 10 * MINUTE]),
)
# A split that ends before its children are listed.
@example([], [("split", 1), ("put", 11)], Service(2539, 2), NO_LIMITS, SECOND)
# A closed split without records is read once, and its second read fails.
@example(
    [("put", 4), ("split twice", 37)],
    [("put", 21), ("batch", 2)],
    Service(82, 1, 0.1, 0.3, (1.0, 3.0, 5.0)),
    NO_LIMITS,
    SECOND,
)
# A batch ends right before records that a search by time has passed over.
@example(
    [("split twice", 42), ("put", 28)],
    [("split twice", 74), ("merge", 77), ("merge", 52), ("put", 32), ("batch", 4)],
    Service(88, 1, 0.6, 0.0, (1.0, 3.0, 5.0)),
    Limits(records=40),
    SECOND,
)
# A closed shard without records is ahead of its child's, which waits for its end.
@example(
    [("split", 30), ("split twice", 75), ("merge", 42), ("split", 30)],
    [
        *[("put", 24), ("fail", 0.3), ("restart",), ("split twice", 100), ("put", 24), ("merge", 48)],
        *[("merge", 64), ("fail", 0.3), ("restart",), ("merge", 100), ("put", 25), ("throttle", 14)],
    ],
    Service(4441, 1, 0.0, 0.0, (1.0, 3.0, 5.0), (0.0, 0.5, 3.0, 90.0)),
    NO_LIMITS,
    MINUTE,
)
# Children's records are earlier than their parents', in two families, of which one must not run ahead.
@example(
    [("put", 1), ("split", 1)],
    [("put", 26), ("split", 0), ("put", 1)],
    Service(377847139, 2, clocks=(0.0, 0.5, 3.0, 90.0)),
    Limits(bytes=200),
    SECOND,
)
def test_no_row_comes_later_than_the_drift_allows(
    backlog: Sequence[tuple[object, ...]],
    steps: Sequence[tuple[object, ...]],
    service: Service,
    limits: Limits,
    drift: int | None,
) -> None:
    """For any fault, and each record comes once. Where arrival times fall, rows may be later by as much.

    Args:
        backlog: steps before the query starts.
    """
    history = History(service, limits, drift)
    history.take([*backlog, ("fail", service.failure_rate), *steps])
    check_exactly_once(history.query, history.records)
    if drift is not None:
        assert lateness(history.query) <= drift + DISORDER + max(service.clocks) * SECOND
