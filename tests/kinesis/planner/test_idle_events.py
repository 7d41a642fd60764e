"""What subscriptions say of a shard: the agent, and the fake of the source's tests, say the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from integration.model import KinesisModel, Laws, ManualClock, ModelLog
from memory_log import S0, SECOND
from memory_subscriptions import MemoryAgent
from pushed_agent import PushedAgent

from sluice.source.model.offsets import HORIZON
from sluice.source.state.subscriptions import SubscriptionProgress

STEP = 0.5
"""Seconds between two triggers."""
OLDEST = 11 * SECOND
"""The last event came up to 5 s ago, and the wait for it began 5 s before. The rest is of the steps."""


class Told:
    """The subscription of an agent to a shard, which is asked for at every step."""

    def __init__(self, kind: str) -> None:
        self.log = ModelLog(KinesisModel(Laws(arrival_disorder=0.0), ManualClock(), 0))
        self.log.create("s", 1)
        self.log.pass_time(10)
        agent: Any = (PushedAgent if kind == "real" else MemoryAgent)(self.log)
        agent.attach(SimpleNamespace(expect_reads=lambda: None))
        self.log.pass_time(10)
        self.subscriptions = agent.subscriptions
        self._is_real = kind == "real"

    def pass_time(self, seconds: float) -> SubscriptionProgress | None:
        for _ in range(round(seconds / STEP)):
            self.log.pass_time(STEP)
            self.subscriptions.follow({S0: HORIZON})
        told: SubscriptionProgress | None = self.subscriptions.progress(S0, HORIZON)
        return told

    def fall_silent(self) -> None:
        if not self._is_real:
            self.subscriptions.subscriptions[S0].is_silent = True
        for subscription in self.log.model.subscriptions(*S0):
            subscription.fall_silent()

    def check_tip(self, told: SubscriptionProgress | None) -> None:
        assert told is not None
        assert told.is_at_tip
        assert told.caught_up_at is not None
        assert self.log.now - OLDEST <= told.caught_up_at <= self.log.now


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_an_idle_shard_is_at_its_tip_as_of_a_moment_ago(kind: str) -> None:
    """Not as of when its subscription was asked for, minutes ago; and not as of now, without an event."""
    shard = Told(kind)
    shard.pass_time(15)
    for seconds in (3, 20, 1, 200, 60, 17.5):
        told = shard.pass_time(seconds)
        shard.check_tip(told)
        assert told is not None
        assert told.caught_up_at != shard.log.now


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_record_dates_its_event(kind: str) -> None:
    """Until the next event comes."""
    shard = Told(kind)
    shard.pass_time(60)
    record = shard.log.put("s", "key")
    told = shard.pass_time(2)
    shard.check_tip(told)
    assert told is not None
    assert [point.number for point in told.cut_points] == [record.sequence_number]
    assert told.caught_up_at == record.arrival


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_silent_subscription_says_nothing(kind: str) -> None:
    """From ten seconds after its last event on."""
    shard = Told(kind)
    shard.pass_time(30)
    shard.fall_silent()
    assert shard.pass_time(0.5) is not None
    assert shard.pass_time(10) is None
