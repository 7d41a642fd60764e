"""When an agent that polls is started, and when it never is."""

from __future__ import annotations

from collections.abc import Mapping

from memory_log import S0

from sluice.kinesis.planner.near_tip import NearTip
from sluice.source.model.offsets import HORIZON, Position
from sluice.source.model.splits import SplitId
from sluice.source.state.subscriptions import SubscriptionProgress

PROGRESS = SubscriptionProgress((), 0)


class Agent:
    """Keeps all messages to the agent."""

    version = 0

    def __init__(self) -> None:
        self.followed: list[Mapping[SplitId, Position]] = []
        self.is_closed = False

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        self.followed.append(positions)

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress:
        del split, position
        return PROGRESS

    def close(self) -> None:
        self.is_closed = True


class Query:
    """A planner's calls, by a clock of the test."""

    def __init__(self) -> None:
        self.now = 50.0
        self.agent = Agent()
        self.expected = 0
        self.near_tip = NearTip(self.agent, self._expect, lambda: self.now)

    def _expect(self) -> None:
        assert len(self.agent.followed) == self.expected  # before the agent may read
        self.expected += 1

    def trigger(self, after: float = 0.0) -> int:
        self.now += after
        self.near_tip.follow({S0: HORIZON})
        return len(self.agent.followed)


def test_the_agent_is_started_by_a_trigger_a_second_after_the_first() -> None:
    """Until then the planner may use all reads; and a run of one batch has no second trigger."""
    query = Query()

    assert [query.trigger(), query.trigger(0.5), query.trigger(0.4), query.trigger(0.1)] == [0, 0, 0, 1]
    assert query.trigger() == 2
    assert query.near_tip.progress(S0, HORIZON) is PROGRESS


def test_a_run_of_what_is_available_has_no_agent() -> None:
    query = Query()
    query.near_tip.turn_off()

    assert [query.trigger(), query.trigger(60.0)] == [0, 0]
    assert query.near_tip.progress(S0, HORIZON) is None
    query.near_tip.close()
    assert query.agent.is_closed
