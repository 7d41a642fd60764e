"""Which shard a hash key belongs to, and when the shards are listed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_kinesis import KEY_SPACE, FakeStream, even_shards, shards_of
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.kinesis.shard_map import Shard, ShardMap, ShardMapCache, shard_map_cache
from sluice.errors import ServiceError


def refused(*, retryable: bool) -> Callable[[], list[Shard]]:
    """A listing that fails."""

    def list_shards() -> list[Shard]:
        raise ServiceError("no", retryable=retryable)

    return list_shards


@given(st.integers(1, 40), st.integers(0, KEY_SPACE - 1))
def test_a_key_belongs_to_the_open_shard_with_its_range(count: int, key: int) -> None:
    """In any order of the listing, and with closed shards in it."""
    listed = [*even_shards(count, 1), Shard("closed", 0, KEY_SPACE - 1, is_closed=True)]
    shard = ShardMap(reversed(listed)).find(key)
    assert shard is not None
    assert shard.first <= key <= shard.last
    assert shard.id != "closed"


def test_a_map_is_used_for_half_a_minute() -> None:
    """Calls of `current` within 30 s share a listing."""
    stream, now = FakeStream(even_shards(2)), [0.0]
    shards = shards_of(stream, lambda: now[0])
    assert stream.listings == 0
    first = shards.current()
    now[0] = 29.9
    assert shards.current() is first
    now[0] = 30.0
    assert shards.current() is not first
    assert stream.listings == 2


@pytest.mark.parametrize(
    ("listed", "is_whole"),
    [
        (even_shards(3), True),
        ([*even_shards(2), Shard("parent", 0, KEY_SPACE - 1)], True),
        (even_shards(3)[1:], False),
        (even_shards(3)[:2], False),
        (even_shards(3)[::2], False),
        ([Shard("parent", 0, KEY_SPACE - 1, is_closed=True)], False),
        ([], False),
    ],
)
def test_a_map_with_a_hole_is_used_for_a_second(listed: list[Shard], *, is_whole: bool) -> None:
    """A listing may show that a shard is closed before it shows its children."""
    stream, now = FakeStream(listed), [0.0]
    shards = shards_of(stream, lambda: now[0])
    first = shards.current()
    now[0] = 0.9
    assert shards.current() is first
    now[0] = 1.0
    assert (shards.current() is first) is is_whole


def test_an_outdated_map_is_replaced_once() -> None:
    """All callers that hold the same outdated map share one new listing."""
    stream = FakeStream(even_shards(2))
    shards = shards_of(stream)
    old = shards.current()
    stream.reshard(4)
    new = shards.newer_than(old)
    assert new.named("shardId-000000000005")
    assert shards.newer_than(old) is new
    assert shards.newer_than(old) is shards.current()
    assert stream.listings == 2
    assert shards.newer_than(new) is not new


def test_nothing_is_known_of_shards_that_cannot_be_listed_again() -> None:
    """For half a minute, then they are listed again. They are not listed on and on meanwhile."""
    stream, now, fails = FakeStream(even_shards(1)), [0.0], [True]

    def list_again() -> list[Shard]:
        listed = stream.list_shards()
        return refused(retryable=True)() if fails[0] else listed

    shards = ShardMapCache(stream.list_shards, list_again, clock=lambda: now[0])
    known = shards.current()
    assert shards.newer_than(known).find(0) is None
    now[0] = 29.9
    assert shards.current().find(0) is None
    assert stream.listings == 2
    now[0] = 30.0
    assert shards.current().find(0) is None
    assert stream.listings == 3
    fails[0] = False
    now[0] = 60.0
    assert shards.current().find(0)


def test_tasks_of_one_process_share_a_cache() -> None:
    """If they write to the same stream, with equal connection options."""
    shard_map_cache.cache_clear()
    here, elsewhere = ConnectionConfig(region="eu-west-1"), ConnectionConfig(region="eu-west-2")
    cache = shard_map_cache(here, "a", None)
    assert cache is shard_map_cache(ConnectionConfig(region="eu-west-1"), "a", None)
    assert cache is not shard_map_cache(here, "b", None)
    assert cache is not shard_map_cache(elsewhere, "a", None)
