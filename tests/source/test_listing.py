"""Which splits exist, by listings that are late, silent, refused or incomplete."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from memory_log import S0, MemoryLog, new_log, put_many
from memory_subscriptions import MemoryAgent
from query import Query, check_order, new_policy, pushed_query, wait_for_subscriptions

from sluice.errors import DataLossError, ServiceError
from sluice.instants import MICROS_PER_SECOND
from sluice.source.listing.listing import Lister, Listing
from sluice.source.logs.stream_log import IteratorStart, StreamInfo
from sluice.source.model.offsets import Offsets
from sluice.source.model.splits import Split, SplitId
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.reading.assigner import assign_ranges

INTERVAL = 10.0
FOREVER = 300.0  # only broken code takes as long


class ListedLog(MemoryLog):
    """Lists when `answering` is set, and not while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answering = threading.Event()
        self.answering.set()
        self.asked = threading.Semaphore(0)
        self.error: Exception | None = None

    def list_splits(self, stream: str) -> Sequence[Split]:
        self.asked.release()
        assert self.answering.wait(FOREVER)
        if self.error is not None:
            raise self.error
        return super().list_splits(stream)


@pytest.fixture
def log() -> ListedLog:
    made = ListedLog()
    made.create("s")
    return made


def new_lister(
    log: MemoryLog, *, fail: bool = True, longest_wait: float = FOREVER, interval: float = INTERVAL
) -> Lister:
    probe = Probe(log, new_policy(log, fail=fail), ProbeSettings(pause=log.sleep, clock=log.monotonic))
    return Lister(probe, ["s"], interval, longest_wait=longest_wait)


def refusal(*, retryable: bool = True, missing: bool = False) -> ServiceError:
    return ServiceError("ListShards of s failed", retryable=retryable, missing=missing)


def next_listing(lister: Lister, than: Listing) -> Listing:
    """The listing after another one, once it has come."""
    end = time.monotonic() + FOREVER
    while (listing := lister.current()) is than:
        assert time.monotonic() < end
    return listing


def test_a_listing_is_dated_by_the_clock_of_the_service() -> None:
    """Also the first one: what existed by then is in it, and offsets say so."""

    class LateClock(MemoryLog):
        """Knows the time of the service from its first answer on; before, its host's, a day ahead."""

        has_answered = False

        def describe(self, stream: str) -> StreamInfo:
            self.has_answered = True
            return super().describe(stream)

        def server_time(self) -> int:
            return super().server_time() + (0 if self.has_answered else 86_400 * MICROS_PER_SECOND)

    log = LateClock()
    log.create("s")
    now = MemoryLog.server_time(log)
    listing = new_lister(log).current()

    assert listing.at < listing.begun_at == now


def test_a_service_that_is_silent_stops_nothing(log: ListedLog, caplog: pytest.LogCaptureFixture) -> None:
    """Planning waits for a moment, once. The last listing serves until the new one comes."""
    caplog.set_level(logging.INFO)
    lister = new_lister(log, longest_wait=0.2)
    first = lister.current()
    log.answering.clear()
    log.pass_time(INTERVAL)
    log.split(S0)
    began = time.monotonic()
    for _ in range(100):
        log.pass_time(INTERVAL)
        assert lister.current() is first
    assert time.monotonic() - began < 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "shards of s could not be listed" in caplog.text
    log.answering.set()
    assert len(next_listing(lister, first).splits) == 3
    assert "shards of s are listed again, after 990 s" in caplog.text


@pytest.mark.parametrize(
    ("error", "fail"),
    [
        (refusal(), True),
        (refusal(retryable=False, missing=True), False),
        (TimeoutError("no leader in 5 s"), True),  # an answer: it does not mean that one may still come
        (TimeoutError(), True),
    ],
)
def test_a_listing_that_fails_for_a_while_is_asked_for_again(
    log: ListedLog, error: Exception, caplog: pytest.LogCaptureFixture, *, fail: bool
) -> None:
    """At every interval, with the splits that are known until then. It is said once, and so is the end."""
    caplog.set_level(logging.INFO)
    lister = new_lister(log, fail=fail)
    first = lister.current()
    log.split(S0)
    log.error = error
    for count in range(2, 7):
        log.pass_time(INTERVAL)
        while log.asked._value < count:
            assert lister.current() is first
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert (str(error) or type(error).__name__) in caplog.text
    log.error = None
    log.pass_time(2 * INTERVAL)
    assert len(next_listing(lister, first).splits) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


@pytest.mark.parametrize(
    "error", [refusal(retryable=False), refusal(retryable=False, missing=True), ValueError("of the log")]
)
def test_an_error_that_will_not_pass_is_raised(log: ListedLog, error: Exception) -> None:
    """A deleted stream, or a call without permission. Splits are listed again behind it."""
    lister = new_lister(log)
    first = lister.current()
    log.error = error
    log.pass_time(INTERVAL)
    with pytest.raises(type(error), match=str(error)):
        lister.current()
    log.error = None
    log.pass_time(INTERVAL)
    assert lister.current() is not first


def test_a_stream_that_is_missing_keeps_no_other_from_being_listed(
    log: ListedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Shards of the other one open, and are read. The missing one may come back as another one."""
    caplog.set_level(logging.INFO)
    log.create("t")
    query = Query(log, ["s", "t"], fail=False)
    log.put("t", "key")
    put_many(log, 5)
    query.run_to_end()

    def run_for(seconds: int) -> int:
        for _ in range(seconds):
            query.run_batch()
            log.pass_time(1)
        return len({*query.numbers()})  # those of a stream that was created again may be duplicated

    log.delete("t")
    log.split(S0)
    put_many(log, 5)
    assert run_for(30) == 11
    assert "shards of s are listed again" in caplog.text
    log.create("t", 2)
    for number in range(5):
        log.put("t", f"key {number}")
    assert run_for(30) == 16
    assert "stream t was deleted and created again" in caplog.text


def test_the_first_listing_is_waited_for(log: ListedLog) -> None:
    """There are no splits to continue with, so its error is raised."""
    log.error = refusal()
    with pytest.raises(ServiceError, match="ListShards of s failed"):
        new_lister(log, longest_wait=0.0).current()


def test_a_listing_that_was_begun_before_a_split_ended_is_made_again(log: ListedLog) -> None:
    """It may miss the children."""
    lister = new_lister(log, longest_wait=0.0)
    first = lister.current()
    log.asked.acquire()
    log.answering.clear()
    log.pass_time(INTERVAL)
    assert lister.current() is first
    assert log.asked.acquire(timeout=FOREVER)
    lister.mark_stale()
    log.answering.set()
    second = next_listing(lister, first)
    log.pass_time(1)
    next_listing(lister, second)


@pytest.mark.parametrize("early", [0, 1])
@pytest.mark.parametrize(("delay", "listings", "seconds"), [(0.3, 1, 0.0), (3.0, 4, 3.5), (1e9, 14, 700.0)])
def test_children_that_are_not_listed_yet_are_looked_for(  # noqa: PLR0917 - pytest names them
    delay: float, listings: int, seconds: float, early: int, log: ListedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, and then at longer and longer intervals, which end at the usual one."""
    lister = new_lister(log, interval=100.0)
    lister.current()
    log.split(S0)
    visible, list_all = log.monotonic() + delay, log.list_splits

    def list_late(stream: str) -> Sequence[Split]:
        splits = list_all(stream)
        return splits if log.monotonic() >= visible else splits[: 1 + early]

    monkeypatch.setattr(log, "list_splits", list_late)
    lister.mark_stale()
    log.pass_time(1.0)
    began, asked = log.monotonic(), log.asked._value
    while len(lister.current().splits) < 3 and log.monotonic() < began + 700:
        log.pass_time(0.1)
    assert log.asked._value - asked == listings
    assert log.monotonic() - began <= seconds + 0.2


@pytest.mark.parametrize(("is_stale", "step", "listings"), [(False, 1.0, 10), (True, 0.01, 22)])
def test_a_listing_serves_for_a_while(log: ListedLog, step: float, listings: int, *, is_stale: bool) -> None:
    """For the interval. A stale one is not made anew at every trigger: the service may show the same for
    seconds, and there may be ninety triggers a second.
    """
    lister = new_lister(log)
    lister.current()
    for _ in range(100 if not is_stale else 1_000):
        if is_stale:
            lister.mark_stale()
        lister.current()
        log.pass_time(step)
    assert log.asked._value <= listings


# --- splits that listings leave out -------------------------------------------------------------------


class Forgetful(MemoryLog):
    """Its next listings leave out a shard, and those after them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten = S0
        self.listings = 0
        self.failures = 0

    def list_splits(self, stream: str) -> Sequence[Split]:
        splits = super().list_splits(stream)
        self.listings -= 1
        if self.listings >= 0:
            return [split for split in splits if split.id != self.forgotten]
        if self.failures:
            self.failures -= 1
            raise ServiceError("ListShards of s failed", retryable=True)
        return splits


def forgetful_query(shards: int, *, fail: bool = True) -> tuple[Forgetful, Query]:
    log = Forgetful()
    log.create("s", shards)
    query = Query(log, fail=fail)
    put_many(log, 10)
    query.run_to_end()
    log.pass_time(60)
    return log, query


def test_a_split_that_exists_is_read_though_it_is_not_listed() -> None:
    """An earlier listing of the run had it."""
    log, query = forgetful_query(2)
    log.listings = 3
    put_many(log, 10)
    slept = log.slept
    query.run_to_end()
    assert len(query.numbers()) == 20
    assert log.slept == slept


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(("listings", "failures"), [(1, 50), (60, 0)])
def test_a_split_that_exists_is_waited_for_after_a_restart(
    caplog: pytest.LogCaptureFixture, listings: int, failures: int, *, fail: bool, is_new: bool
) -> None:
    """However long listings lack it, or fail. It is no loss, and is read before its children, also if it has
    opened while the query was stopped.
    """
    log, query = forgetful_query(1, fail=fail)
    put_many(log, 10)
    left, _ = log.split(S0)
    put_many(log, 10)
    if is_new:
        log.split(left)
        put_many(log, 10)
        log.forgotten = left
    query.restart()
    log.listings, log.failures = listings, failures
    slept = log.slept
    query.run_to_end()
    assert len(query.numbers()) == 30 + 10 * is_new
    check_order(query)
    waited = log.slept - slept
    assert waited > 60
    assert caplog.text.count("not listed, though not read to the end") <= 1 + waited / 30


@pytest.mark.parametrize("listings", [1, 3])
def test_a_batch_is_read_in_the_same_way_whatever_a_listing_leaves_out(listings: int) -> None:
    """After a restart too: a child comes after its parent, in its task, and its hash keys are known."""
    log = Forgetful()
    log.create("s", 1)
    query = Query(log)
    put_many(log, 10)
    query.log_start()
    children = log.split(S0)
    put_many(log, 10)
    log.pass_time(60)
    query.log_end(query.plan())
    before = query.enumerator.ranges(*map(Offsets.from_json, query.offsets))
    assert {each.split for each in before} == {S0, *children}
    for child in children:
        query.restart()
        log.forgotten, log.listings = child, listings
        after = query.enumerator.ranges(*map(Offsets.from_json, query.offsets))
        assert [(r.split, r.parents, r.hash_range) for r in after] == [
            (r.split, r.parents, r.hash_range) for r in before
        ]
        assert len(assign_ranges(after, 1)) == 1


def test_listings_that_leave_out_other_splits_each_prove_nothing() -> None:
    """What one of them leaves out another one has had before. Together they are complete soon."""

    class Patchy(MemoryLog):
        random = random.Random(1)

        def list_splits(self, stream: str) -> Sequence[Split]:
            return [split for split in super().list_splits(stream) if self.random.random() < 0.8]

    log = Patchy()
    log.create("s", 60)
    query = Query(log)
    for _ in range(5):
        put_many(log, 60)
        query.run_to_end()
        query.restart()
        slept = log.slept
        query.run_batch()
        assert log.slept - slept <= 20
        log.pass_time(60)
    query.run_to_end()
    assert len(query.numbers()) == 300


class Lenient(MemoryLog):
    """Gives iterators for shards that it has no more."""

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        return super().get_iterator(split, start) if split in self.shards else "old"


def test_the_shards_of_a_stream_that_was_created_again_are_not_waited_for() -> None:
    """Nothing can be read of them in the new stream, though there are iterators."""
    log = Lenient()
    log.create("s", 2)
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    log.delete("s")
    log.pass_time(60)
    log.create("s", 1)
    query.restart()
    with pytest.raises(DataLossError, match="was deleted and created again"):
        query.run_batch()


def test_parents_that_are_never_listed_do_not_keep_a_query_from_starting() -> None:
    """They may have expired long ago."""
    log = Lenient()
    log.create("s", 1)
    log.split(S0)
    log.expire(S0)
    put_many(log, 10)
    query = Query(log)
    query.run_to_end()
    assert len(query.numbers()) == 10


def test_a_shard_of_the_old_stream_is_not_mistaken_for_one_of_the_same_name() -> None:
    """The stream was deleted and created again, and a listing leaves out the new shard."""
    log, query = forgetful_query(2, fail=False)
    log.delete("s")
    log.pass_time(60)
    log.create("s", 2)
    done = len(query.batches)
    records = put_many(log, 10)
    log.listings = 1
    query.run_to_end()
    assert sorted(query.rows_since(done)) == sorted(records)


# --- splits that are gone -----------------------------------------------------------------------------


def polled(log: MemoryLog) -> tuple[Query, None]:
    return Query(log), None


@pytest.mark.parametrize("make", [polled, pushed_query])
def test_a_split_that_is_gone_is_reported_at_once(
    make: Callable[[MemoryLog], tuple[Query, MemoryAgent | None]],
) -> None:
    """Planning waits for no listing that might have it, and for no agent that may have buffered it."""
    log = new_log()
    query, _ = make(log)
    put_many(log, 10)
    wait_for_subscriptions(query)
    log.split(S0)
    log.expire(S0)
    log.pass_time(60)
    slept = log.slept
    with pytest.raises(DataLossError, match=f"vanished.*{S0}"):
        query.run_batch()
    assert log.slept == slept


def test_a_read_that_finds_no_split_makes_planning_list_again() -> None:
    """Before a listing is due: the loss is reported within seconds, and not after the interval."""
    log = new_log()
    query = Query(log)
    query.run_batch()
    put_many(log, 10)
    log.split(S0)
    log.expire(S0)
    log.pass_time(3)
    query.run_batch()  # reads, and finds no split; a listing is due after 10 s
    log.pass_time(3)
    with pytest.raises(DataLossError, match=f"vanished.*{S0}"):
        query.run_batch()
