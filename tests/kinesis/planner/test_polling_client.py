"""The planner's end of the link to an agent that polls: when a shard that was given up is tried again."""

from __future__ import annotations

import logging

import pytest
from polled_agent import CONFIG

from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.shared.protocol import FAR_BEHIND, Subscribe, SubscriptionEnded, ToAgent
from sluice.source.model.offsets import HORIZON
from sluice.source.model.splits import SplitId

SPLIT = SplitId("s", "shardId-0")
LOGGER = "sluice.kinesis.planner.agent_client"


class Supervisor:
    """Stands where the agent's process and link are."""

    is_running, is_silent, start_in = True, False, 0.0

    def __init__(self) -> None:
        self.sent: list[ToAgent] = []

    def start(self) -> None:
        pass

    def check(self) -> None:
        pass

    def send(self, message: ToAgent) -> None:
        self.sent.append(message)


class Planning:
    """A client and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        assert CONFIG.agent is not None
        setup = AgentSetup.beside_driver(CONFIG)
        self.client = AgentClient(setup, clock=lambda: self.now)
        self.supervisor = Supervisor()
        self.client._supervisor = self.supervisor  # type: ignore[assignment]

    @property
    def requests(self) -> list[Subscribe]:
        return [message for message in self.supervisor.sent if isinstance(message, Subscribe)]

    def end(self, code: str) -> None:
        self.client._handle_message(SubscriptionEnded(SPLIT, self.requests[-1].generation, "why", code))

    def seconds_to_next_attempt(self) -> float:
        began, before = self.now, len(self.requests)
        while len(self.requests) == before:
            self.now += 0.5
            self.client.follow({SPLIT: HORIZON})
        return self.now - began


@pytest.mark.parametrize(
    ("code", "pause", "level"),
    [
        (FAR_BEHIND, 10.0, logging.INFO),
        ("AccessDeniedException", 10.0, logging.WARNING),
        ("ResourceNotFoundException", 10.0, logging.WARNING),
    ],
)
def test_why_the_agent_does_not_read_is_logged(
    caplog: pytest.LogCaptureFixture, code: str, pause: float, level: int
) -> None:
    """With what happens next, and when. A shard that is behind is no reason to worry."""
    caplog.set_level(logging.INFO, LOGGER)
    planning = Planning()
    planning.client.follow({SPLIT: HORIZON})
    planning.end(code)

    line = f"planner and tasks do from TRIM_HORIZON on, next attempt in {pause:g} s: why"
    assert caplog.record_tuples == [(LOGGER, level, f"{SPLIT}: the agent does not read it; {line}")]
    assert planning.client.progress(SPLIT, HORIZON) is None
    assert planning.seconds_to_next_attempt() == pause
