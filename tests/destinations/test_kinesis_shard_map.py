"""Which shard a key belongs to, and when that is asked again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinesis_fakes import KEY_SPACE, FakeStream, evenly

from sluice.aws.connection import ConnectionConfig
from sluice.destinations.kinesis.shard_map import ListedShard, ShardMap, Shards, shards_of


@given(st.integers(1, 40), st.integers(0, KEY_SPACE - 1))
def test_every_key_belongs_to_the_open_shard_whose_range_it_is_in(count: int, key: int) -> None:
    """Whatever the order of the listing, and whatever closed shards there are."""
    listed = [*evenly(count, 1), ListedShard("closed", (0, KEY_SPACE - 1), is_closed=True)]
    shard = ShardMap(reversed(listed)).find(key)
    assert shard is not None
    assert shard.first <= key <= shard.last
    assert shard.id != "closed"


def test_the_edges_of_ranges() -> None:
    """First and last hash key are both included; between shards there may be a gap."""
    shards = ShardMap([ListedShard("a", (10, 19)), ListedShard("b", (30, 39))])
    found = [shard.id if (shard := shards.find(key)) else None for key in (9, 10, 19, 20, 29, 30, 39, 40)]
    assert found == [None, "a", "a", None, None, "b", "b", None]


def test_closed_shards_are_known_by_name() -> None:
    """An answer may name a shard that was closed since."""
    shards = ShardMap([ListedShard("a", (0, 9), is_closed=True)])
    shard = shards.named("a")
    assert shard is not None
    assert (shard.first, shard.last) == (0, 9)
    assert (shard.holds(0, 9), shard.holds(0, 10), shard.holds(-1, 9)) == (True, False, False)
    assert shards.named("b") is None
    assert ShardMap([]).find(0) is None


def test_a_listing_is_good_for_half_a_minute() -> None:
    """However often it is asked for."""
    stream, now = FakeStream(evenly(2)), [0.0]
    shards = Shards(stream.listed, clock=lambda: now[0])
    assert stream.listings == 0
    first = shards.current()
    now[0] = 29.9
    assert shards.current() is first
    now[0] = 30.0
    assert shards.current() is not first
    assert stream.listings == 2


def test_many_who_find_it_outdated_ask_once() -> None:
    """The first one's listing serves those who had the same outdated one."""
    stream = FakeStream(evenly(2))
    shards = Shards(stream.listed)
    old = shards.current()
    stream.reshard(4)
    new = shards.newer_than(old)
    assert new.named("shardId-000000000005")
    assert shards.newer_than(old) is new
    assert shards.newer_than(old) is shards.current()
    assert stream.listings == 2
    assert shards.newer_than(new) is not new


def test_what_is_forgotten_is_listed_again() -> None:
    """At the next question, not before."""
    stream = FakeStream(evenly(2))
    shards = Shards(stream.listed)
    shards.current()
    shards.forget()
    assert stream.listings == 1
    shards.current()
    assert stream.listings == 2


def test_a_listing_that_fails_leaves_nothing_behind() -> None:
    """The next question asks again."""
    answers: list[list[ListedShard]] = [evenly(1)]

    def listing() -> list[ListedShard]:
        if not answers:
            raise OSError("no")
        return answers.pop()

    now = [0.0]
    shards = Shards(listing, clock=lambda: now[0])
    shards.current()
    now[0] = 31.0
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            shards.current()


def test_tasks_of_one_process_share_what_is_known() -> None:
    """Of the same stream, reached in the same way; listed by nobody yet."""
    shards_of.cache_clear()
    here = ConnectionConfig(region="eu-west-1")
    assert shards_of(here, "a", None) is shards_of(ConnectionConfig(region="eu-west-1"), "a", None)
    assert shards_of(here, "a", None) is not shards_of(here, "b", None)
    assert shards_of(here, "a", None) is not shards_of(ConnectionConfig(region="eu-west-2"), "a", None)
