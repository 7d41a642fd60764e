"""Shards are dealt out by the bytes that they bring, and few move."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.kinesis.agent.shard_loads import BalanceWatch, ShardLoads, plan_moves
from sluice.source.model.splits import SplitId

MIB = 1024 * 1024
Shares = dict[str, dict[SplitId, float]]


def split(number: int) -> SplitId:
    return SplitId("clicks", f"shardId-{number:06}")


def shares_of(**agents: list[float]) -> Shares:
    numbers = iter(range(1_000_000))
    return {host: {split(next(numbers)): load for load in loads} for host, loads in agents.items()}


def moved(shares: Shares, moves: dict[SplitId, str]) -> Shares:
    loads = {split: load for shards in shares.values() for split, load in shards.items()}
    after = {
        host: {each: load for each, load in shards.items() if each not in moves}
        for host, shards in shares.items()
    }
    for each, host in moves.items():
        after[host][each] = loads[each]
    return after


def totals(shares: Shares) -> dict[str, float]:
    return {host: sum(shards.values()) for host, shards in shares.items()}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- what a shard asks for ----------------------------------------------------------------------------------


def test_a_shard_of_which_nothing_is_known_counts_as_idle() -> None:
    """So shards count alike before anything has come."""
    loads = ShardLoads(64.0, Clock())
    assert loads[split(0)] == 64.0


def test_a_steady_rate_is_known_after_some_minutes_and_forgotten_after_some() -> None:
    """However the bytes are cut into events."""
    clock = Clock()
    loads = ShardLoads(0.0, clock)
    for _ in range(600):
        clock.now += 0.5
        loads.record(split(0), 500)
    assert loads[split(0)] == pytest.approx(1000, rel=0.02)
    clock.now += 600
    assert loads[split(0)] < 1
    loads.forget(split(0))
    assert loads[split(0)] == 0


# --- moves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "after"),
    [
        (shares_of(a=[1, 1, 1, 1], b=[]), [2, 2]),
        (shares_of(a=[1] * 12, b=[1] * 12, c=[]), [8, 8, 8]),
        (shares_of(a=[1, 1, 1], b=[1, 1, 1], c=[1, 1]), [3, 3, 2]),
        (shares_of(a=[20, 1, 1, 1], b=[1, 1, 1, 1], c=[1, 1, 1, 1]), [20, 6, 5]),
        (shares_of(a=[20], b=[1, 1, 1, 1, 1, 1], c=[]), [20, 3, 3]),
        (shares_of(a=[5, 5], b=[]), [5, 5]),
        (shares_of(a=[5, 4], b=[1]), [5, 5]),
        (shares_of(a=[7]), [7]),
        ({}, []),
    ],
)
def test_what_agents_have_after_moves(shares: Shares, after: list[float]) -> None:
    """By number where shards bring alike; else by what they bring."""
    found = totals(moved(shares, plan_moves(shares))).values()
    assert sorted(found) == sorted(after)


def test_few_move() -> None:
    """One that is worth three, in place of three."""
    assert len(plan_moves(shares_of(a=[3, 3, 1, 1, 1], b=[3]))) == 1


LOADS = st.lists(st.floats(0.01, 1000), max_size=12)


@given(st.lists(LOADS, min_size=1, max_size=5), st.randoms())
def test_no_agent_has_much_more_than_its_share(given_loads: list[list[float]], chance: random.Random) -> None:
    """At most what one of its shards is more, or a twentieth; the busiest never gets busier, and a second
    plan finds nothing. Shards that may not move stay.
    """
    shares = shares_of(**{f"host-{number}": loads for number, loads in enumerate(given_loads)})
    moves = plan_moves(shares)
    after = moved(shares, moves)
    before, now = totals(shares), totals(after)
    mean = sum(now.values()) / len(now)
    assert sum(now.values()) == pytest.approx(sum(before.values()))
    assert max(now.values()) <= max(before.values()) * (1 + 1e-9)
    for host, shards in after.items():
        # A newcomer to the agent is never moved on in the same plan; the next one may.
        own = [load for each, load in shards.items() if each not in moves]
        if own:
            assert now[host] <= min(now.values()) + max(min(own) / 0.9, mean * 0.05) + 1e-6 * mean
    stuck = {each for each in moves if chance.random() < 0.5}
    assert not stuck & plan_moves(shares, may_move=lambda each: each not in stuck).keys()


def test_ten_thousand_shards_are_dealt_anew_at_once() -> None:
    """The hub's lock is held meanwhile."""
    shares = shares_of(a=[1.0 + number % 7 for number in range(10_000)], b=[])
    after = totals(moved(shares, plan_moves(shares)))
    assert max(after.values()) / min(after.values()) < 1.06


# --- agents that work --------------------------------------------------------------------------------------


class Watched:
    """A watch that is called every second, and moves that are made at once."""

    def __init__(self, shares: Shares) -> None:
        self.clock = Clock()
        self.shares = shares
        self.watch = BalanceWatch(self.clock)
        self.moves: list[tuple[float, dict[SplitId, str]]] = []

    def run(self, seconds: int, change: Callable[[float], None] = lambda _now: None) -> None:
        for _ in range(seconds):
            self.clock.now += 1
            change(self.clock.now)
            if moves := self.watch.plan(lambda: self.shares, lambda _split: True):
                self.moves.append((self.clock.now, moves))
                self.shares = moved(self.shares, moves)


def test_a_hot_shard_is_left_alone_after_a_minute() -> None:
    """The others of its agent move; then nothing does any more."""
    watched = Watched(shares_of(a=[2.0 * MIB, *[MIB / 5] * 3], b=[MIB / 5] * 4, c=[MIB / 5] * 4))
    watched.run(3600)

    [(at, moves)] = watched.moves
    assert 60 <= at - 1000 <= 75
    assert len(moves) == 3
    assert max(totals(watched.shares).values()) == 2.0 * MIB


@pytest.mark.parametrize("scale", [MIB / 100, MIB, 20 * MIB])
def test_nothing_moves_for_noise(scale: float) -> None:
    """Rates that go up and down by a fifth, for a whole day, of agents that have some more or less."""
    watched = Watched(shares_of(a=[scale] * 5, b=[scale] * 4, c=[scale] * 4))
    chance = random.Random(7)

    def change(_now: float) -> None:
        for shards in watched.shares.values():
            for each in shards:
                shards[each] = scale * chance.uniform(0.8, 1.2)

    watched.run(24 * 3600 // 10, change)
    assert watched.moves == []


def test_nothing_moves_for_what_lasts_half_a_minute() -> None:
    """A backlog that is caught up, again and again; nor for differences that any agent bears."""
    watched = Watched(shares_of(a=[MIB] * 4, b=[MIB] * 4))
    hot = next(iter(watched.shares["a"]))

    def change(now: float) -> None:
        watched.shares["a"][hot] = 9.0 * MIB if now % 60 < 30 else 1.0 * MIB

    watched.run(3600, change)
    assert watched.moves == []
    little = Watched(shares_of(a=[MIB / 5] * 4, b=[1.0]))
    little.run(600)
    assert little.moves == []


def test_few_shards_move_at_once() -> None:
    """A tenth of them, and once a minute."""
    watched = Watched(shares_of(a=[1.0 * MIB] * 100, b=[1.0] * 100))
    watched.run(200)
    assert [len(moves) for _, moves in watched.moves] == [20, 20]


def test_the_minute_begins_when_agents_have_come_or_gone() -> None:
    """Shards were just dealt out then."""
    watched = Watched(shares_of(a=[2.0 * MIB] * 4, b=[1.0]))
    watched.run(55)
    watched.watch.reset()
    watched.run(50)
    assert watched.moves == []
