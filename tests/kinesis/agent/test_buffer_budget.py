"""What shards hold together is bounded, and each of them gets its turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.kinesis.agent.buffer_budget import BufferBudget, Share

LIMIT = 800  # 700 for all, and 100 more for what tasks wait for


def has(budget: BufferBudget, share: Share, size: int) -> bool:
    """Requests space. Returns whether it is there at once."""
    budget.request(share, size)
    return not share.wanted


def test_one_busy_shard_may_hold_half_and_two_a_third_each() -> None:
    """What is left lets in others. As batches consume the buffered events, the two become equal."""
    budget = BufferBudget(LIMIT)
    one, two = Share(), Share()
    while has(budget, one, 10):
        pass
    assert one.held == 350
    while has(budget, two, 10):
        pass
    assert two.held == 180

    for _ in range(100):
        for share in (one, two):
            budget.release(share, 10)
            while not share.wanted and has(budget, share, 10):
                pass
    assert (one.held, two.held) == pytest.approx((233, 233), abs=10)


def test_a_shard_with_enough_is_no_hindrance() -> None:
    """Those behind it, which hold nothing, are let in where there is space."""
    budget = BufferBudget(LIMIT)
    greedy, other = Share(), Share()
    assert has(budget, greedy, 350)
    assert not has(budget, greedy, 10)

    assert has(budget, other, 100)
    assert greedy.wanted


@dataclass(eq=False)
class Shard:
    share: Share = field(default_factory=Share)
    buffered: list[tuple[int, bool]] = field(default_factory=list)  # sizes, and whether they are lent
    is_awaited: bool = False

    @property
    def held(self) -> int:
        return sum(size for size, _ in self.buffered)


class Budgets(RuleBasedStateMachine):
    """Events that arrive, are acknowledged and read, and shards that come and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = BufferBudget(LIMIT)
        self.shards = [Shard() for _ in range(6)]
        self.turns: list[Shard] = []  # in which those that hold nothing have come
        self.largest = 0

    def settle(self) -> None:
        for shard in self.shards:
            if not shard.share.wanted and (
                given := self.budget.wait(shard.share) if shard.share.given else 0
            ):
                shard.buffered.append((given, shard.share.is_lent))
        # Whoever holds nothing has its turn before all who came later and hold nothing either.
        left = [shard for shard in self.turns if shard.share.wanted]
        let_in = [index for index, shard in enumerate(self.turns) if not shard.share.wanted]
        assert let_in == list(range(len(let_in)))
        self.turns = left

    def release(self, shard: Shard, count: int) -> None:
        gone, shard.buffered = shard.buffered[:count], shard.buffered[count:]
        for size, is_lent in gone:
            self.budget.release(shard.share, size, is_lent=is_lent)

    @rule(index=st.integers(0, 5), size=st.integers(1, 300) | st.integers(1, 2 * LIMIT))
    def event_comes(self, index: int, size: int) -> None:
        shard = self.shards[index]
        if not shard.share.wanted:
            shard.is_awaited = False
            self.largest = max(self.largest, size)
            self.budget.request(shard.share, size)
            if not shard.buffered:
                self.turns.append(shard)
            self.settle()

    @rule(index=st.integers(0, 5))
    def task_waits(self, index: int) -> None:
        shard = self.shards[index]
        if shard.share.wanted:
            if shard in self.turns:
                self.turns.remove(shard)  # it overtakes
            shard.is_awaited = True
            self.budget.lend(shard.share)
            self.settle()

    @rule(index=st.integers(0, 5), count=st.integers(1, 5))
    def batch_ends(self, index: int, count: int) -> None:
        shard = self.shards[index]
        self.release(shard, count)
        if shard.share.wanted and not shard.buffered and not shard.is_awaited and shard not in self.turns:
            self.turns = []  # it came before some who hold nothing, and after others: do not judge these
        self.settle()

    @rule(index=st.integers(0, 5))
    def shard_goes(self, index: int) -> None:
        shard = self.shards[index]
        self.budget.close(shard.share)
        if shard in self.turns:
            self.turns.remove(shard)
        self.release(shard, len(shard.buffered))
        self.shards[index] = Shard()
        self.settle()

    @precondition(lambda self: any(shard.share.wanted for shard in self.shards))
    @rule()
    def everything_is_read(self) -> None:
        """Then everybody who waits is let in sooner or later."""
        for _ in range(100):
            holders = [shard for shard in self.shards if shard.buffered]
            for shard in holders:
                self.release(shard, len(shard.buffered))
                self.turns = []
                self.settle()
        assert not any(shard.share.wanted for shard in self.shards)

    @invariant()
    def it_holds_what_its_shards_hold(self) -> None:
        for shard in self.shards:
            assert shard.share.held == shard.held
        assert self.budget.held == sum(shard.share.held for shard in self.shards)

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.budget.held <= max(LIMIT, self.largest) + self.largest

    @invariant()
    def nobody_waits_without_a_reason(self) -> None:
        waiting = [shard for shard in self.shards if shard.share.wanted]
        if waiting:
            assert self.budget.held > 0
        if any(shard.is_awaited for shard in waiting):
            assert self.budget.held > LIMIT
            assert any(is_lent for shard in self.shards for _, is_lent in shard.buffered)


TestBudgets = Budgets.TestCase
TestBudgets.settings = settings(stateful_step_count=25)


@given(st.lists(st.integers(50, 1_000), min_size=1, max_size=8), st.integers(0, 999))
def test_each_shard_has_its_turn(sizes: list[int], seed: int) -> None:
    """However much the others have: one event at least in as many batches as there are shards."""
    random = Random(seed)
    budget = BufferBudget(LIMIT)
    shares = {Share(): size for size in sizes}
    turns = dict.fromkeys(shares, 0)
    for share, size in shares.items():
        budget.request(share, size)
    for _ in range(2 * len(sizes)):
        for share in random.sample(list(shares), len(shares)):
            budget.release(share, share.held)
        for share in random.sample(list(shares), len(shares)):
            while not share.wanted:
                turns[share] += 1
                budget.request(share, shares[share])

    assert min(turns.values()) >= 1
