"""Splits that listings leave out: waited for, unless the service says that they are gone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from memory_log import S0, MemoryLog, new_log, put_many
from query import Query, check_exactly_once, check_order, pushed_query, wait_for_subscriptions

from sluice.errors import DataLossError, ServiceError
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import Offsets
from sluice.source.model.splits import Split, SplitId
from sluice.source.reading.assigner import assign_ranges


def seconds_until_reported(query: Query) -> float:
    """For how long planning waits for a split before it is reported."""
    began = query.log.monotonic()
    with pytest.raises(DataLossError, match="vanished"):
        query.run_batch()
    return query.log.monotonic() - began


def test_a_split_that_is_gone_is_reported_at_once() -> None:
    """Planning waits for no listing that might have it."""
    log = new_log()
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    log.expire(S0)
    log.pass_time(60)
    assert seconds_until_reported(query) == 0


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


def test_a_split_that_can_be_read_is_waited_for() -> None:
    """Listings are eventually consistent."""
    log = Forgetful()
    log.create("s", 2)
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    log.listings = 3
    log.pass_time(60)
    put_many(log, 10)
    query.run_to_end()
    assert len(query.numbers()) == 20


def test_listings_that_fail_do_not_prove_that_a_split_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """One listing leaves it out, and then there is none for a while: no other one has confirmed it."""
    log = Forgetful()
    log.create("s", 2)
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    query.restart()  # which has seen no other listing
    log.listings, log.failures = 1, 50
    log.pass_time(60)
    put_many(log, 10)
    slept = log.slept
    query.run_to_end()
    assert len(query.numbers()) == 20
    assert log.slept - slept > 60
    assert caplog.text.count("not listed, though not read to the end") == 1


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


@pytest.mark.parametrize("fail", [True, False])
def test_a_split_that_can_be_read_is_no_loss_however_long_it_is_not_listed(*, fail: bool) -> None:
    """After a restart no earlier listing has it. It is read once, and before its children."""
    log = Forgetful()
    log.create("s", 1)
    query = Query(log, fail=fail)
    records = put_many(log, 10)
    query.run_to_end()
    records += put_many(log, 10)
    log.split(S0)
    records += put_many(log, 10)
    query.restart()
    log.listings = 60
    log.pass_time(60)
    query.run_to_end()
    check_exactly_once(query, records)
    check_order(query)


class Lenient(MemoryLog):
    """Gives iterators for shards that it has no more, as services do that know streams by their ARNs."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = 0

    def list_splits(self, stream: str) -> Sequence[Split]:
        self.listings += 1
        assert self.listings < 50, "what is not needed is waited for without end"
        return super().list_splits(stream)

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        return super().get_iterator(split, start) if split in self.shards else "old"


def test_the_shards_of_a_stream_that_was_created_again_are_not_waited_for_without_end() -> None:
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
    children = log.split(S0)
    log.expire(S0)
    put_many(log, 10)
    query = Query(log)
    query.run_to_end()
    assert len(query.numbers()) == 10
    assert set(log.shards) == {*children}


class Patchy(MemoryLog):
    """Each listing leaves out other shards."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(1)

    def list_splits(self, stream: str) -> Sequence[Split]:
        return [split for split in super().list_splits(stream) if self.random.random() < 0.8]


def test_listings_that_leave_out_other_splits_each_prove_nothing() -> None:
    """What one of them leaves out another one has had before. Together they are complete soon."""
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


def test_a_split_of_the_stream_before_is_not_taken_for_one_of_the_same_name() -> None:
    """The stream was deleted and created again, and a listing leaves out the new shard."""
    log = Forgetful()
    log.create("s", 2)
    query = Query(log, fail=False)
    put_many(log, 10)
    query.run_to_end()
    before = query.enumerator._discovery.current().splits[S0]
    log.delete("s")
    log.pass_time(60)
    log.create("s", 2)
    log.forgotten, log.listings = S0, 1
    assert S0 not in query.enumerator._discovery.list_splits().splits
    assert query.enumerator._discovery.list_splits().splits[S0] != before


def test_a_split_that_was_listed_and_is_gone_is_a_loss_at_once() -> None:
    log = new_log()
    query = Query(log)
    put_many(log, 10)
    query.run_to_end()
    log.pass_time(10)
    log.expire(S0)
    query.enumerator._discovery.mark_stale()
    assert seconds_until_reported(query) == 0


def test_a_pushed_split_that_is_gone_is_waited_for() -> None:
    """Its subscription may have brought all of it, and its agent may be silent for a while."""
    log = new_log()
    query, _ = pushed_query(log)
    put_many(log, 10)
    wait_for_subscriptions(query)
    log.expire(S0)
    log.pass_time(60)
    assert 30 <= seconds_until_reported(query) <= 40


def test_a_split_that_is_gone_with_its_subscription_is_not_waited_for() -> None:
    """Its agent was replaced."""
    log = new_log()
    query, agent = pushed_query(log)
    put_many(log, 10)
    wait_for_subscriptions(query)
    agent.subscriptions.lose()
    log.expire(S0)
    log.pass_time(60)
    assert seconds_until_reported(query) == 0
