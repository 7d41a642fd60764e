"""The coordinator: what becomes of consumers that a query registered, and where its tasks read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.channels.channel import Address
from sluice.kinesis import fanout_driver
from sluice.kinesis.consumers import Consumer
from sluice.kinesis.driver import SourceCoordinator, assign_bounded_read, create_coordinator
from sluice.kinesis.fanout.assignment import FanOutAssignment
from sluice.kinesis.fanout.driver.agent_process import is_alive
from sluice.kinesis.options import SourceConfig, source_config_from_options
from sluice.source.offsets import HORIZON, Closed, Offsets, SplitRange
from sluice.source.splits import SplitId

STREAM_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/clicks"
ARN, OTHER_ARN = f"{STREAM_ARN}/consumer/app:1", f"{STREAM_ARN}/consumer/app:2"
SPLIT = SplitId("clicks", "shardId-000000000000")
RANGES = [SplitRange(SPLIT, HORIZON, Closed())]
AGENT = Address("127.0.0.1", 7, b"secret", b"start")


class FakeAgentClient:
    """Keeps its calls, in order."""

    hub = AGENT
    hosts = frozenset({"127.0.0.1"})

    def __init__(self, setup: object, arns: Mapping[str, str], **_: object) -> None:
        del setup, arns
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def set_registered(self, registered: frozenset[str]) -> None:
        self.calls.append(registered)

    def wait_for_agent(self, seconds: float) -> None:
        self.calls.append(f"wait {seconds:g} s")

    def agents(self, splits: Sequence[SplitId]) -> dict[SplitId, Address]:
        return dict.fromkeys(splits, AGENT)

    def tell_stop(self) -> None:
        self.calls.append("tell stop")

    def close(self) -> None:
        self.calls.append("close")


class FakeRegistrar:
    """Has consumers ready."""

    registers = True

    def __init__(self, config: object) -> None:
        del config

    def ensure(self, stream: str) -> Consumer:
        return Consumer(stream, ARN, registered=self.registers)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRegistrar, "registers", True)
    monkeypatch.setattr(fanout_driver, "AgentClient", FakeAgentClient)
    monkeypatch.setattr(fanout_driver, "ConsumerRegistrar", FakeRegistrar)
    monkeypatch.setattr(fanout_driver, "on_stop", lambda _tell: None)


def config(
    options: Mapping[str, str] | None = None, *, at_load: Mapping[str, str] | None = None
) -> SourceConfig:
    base = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    made = source_config_from_options(base | dict(options or {}))
    assert made.fan_out is not None
    return replace(made, fan_out=replace(made.fan_out, registered=at_load or {}))


def agent_calls(coordinator: SourceCoordinator) -> list[Any]:
    calls: list[Any] = coordinator._agent.calls  # type: ignore[attr-defined]
    return calls


# --- consumers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_disconnected", "driver_lives", "first"),
    [(True, True, "tell stop"), (True, False, "close"), (False, True, "close")],
)
def test_a_driver_that_disconnects_and_lives_has_stopped_the_query(
    monkeypatch: pytest.MonkeyPatch, *, is_disconnected: bool, driver_lives: bool, first: str
) -> None:
    """Its signal may come too late. The agent has to know of the stop before its link closes."""
    monkeypatch.setattr(fanout_driver, "is_alive", lambda _driver: driver_lives)
    coordinator = create_coordinator(config())
    calls = agent_calls(coordinator)
    calls.clear()

    coordinator.close(is_disconnected=is_disconnected)

    assert calls[0] == first
    assert set(calls[1:]) <= {"close"}


@pytest.mark.parametrize(
    ("logged", "at_load", "registered"),
    [
        ({}, {}, {}),
        ({"clicks": ARN}, {}, {"clicks": ARN}),
        ({}, {"clicks": ARN}, {"clicks": ARN}),
        ({"clicks": OTHER_ARN}, {"clicks": OTHER_ARN}, {}),
        ({"gone": ARN}, {}, {}),
    ],
)
def test_a_consumer_registered_earlier_is_known_by_its_arn(
    monkeypatch: pytest.MonkeyPatch,
    logged: Mapping[str, str],
    at_load: Mapping[str, str],
    registered: Mapping[str, str],
) -> None:
    """By ``load()`` or by an earlier run. Another ARN is that of a consumer somebody else has registered."""
    monkeypatch.setattr(FakeRegistrar, "registers", False)
    coordinator = create_coordinator(config(at_load=at_load))

    coordinator.restore(Offsets({}, consumers=logged))

    assert coordinator.enumerator.registered == registered
    last = [each for each in agent_calls(coordinator) if isinstance(each, frozenset)][-1]
    assert last == frozenset(registered.values())
    coordinator.close()


@pytest.mark.parametrize(("now", "at_load"), [(True, {}), (False, {"clicks": ARN}), (False, {})])
def test_a_batch_read_warns_of_a_consumer_that_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, now: bool, at_load: dict[str, str]
) -> None:
    """One that it registered, now or at ``load()``: Spark does not say when the last task has read."""
    monkeypatch.setattr(FakeRegistrar, "registers", now)

    assignment = assign_bounded_read(config(at_load=at_load))

    assert assignment == FanOutAssignment({"clicks": ARN}, is_streaming=False)
    assert ("stays registered" in caplog.text) == (now or bool(at_load))


def test_the_death_of_the_driver_is_noticed() -> None:
    """A moment after a driver has closed its connections, its children get another parent."""
    parents = iter([7, 7, 1])
    slept: list[float] = []

    assert not is_alive(7, getppid=lambda: next(parents), sleep=slept.append)
    assert len(slept) == 2
    assert is_alive(7, getppid=lambda: 7, sleep=slept.append)
    assert sum(slept) == pytest.approx(2.1)


# --- where tasks read from ----------------------------------------------------------------------------


def test_tasks_of_a_polling_query_get_no_assignment() -> None:
    """Neither for a stream nor for a batch read."""
    polling = source_config_from_options({"streamName": "clicks", "region": "us-east-1"})
    coordinator = create_coordinator(polling)

    coordinator.restore(Offsets({}, consumers={"clicks": ARN}))
    assert coordinator.assign(RANGES) is None
    assert assign_bounded_read(polling) is None
    coordinator.close()


@pytest.mark.parametrize(
    ("options", "expected", "waits"),
    [
        ({}, FanOutAssignment({"clicks": ARN}, {SPLIT: AGENT}, AGENT, FakeAgentClient.hosts), False),
        (
            {"subscribeToShardFallback": "fail"},
            FanOutAssignment({"clicks": ARN}, {SPLIT: AGENT}, AGENT, FakeAgentClient.hosts),
            True,
        ),
        ({"fanOutAgent": "none"}, FanOutAssignment({"clicks": ARN}), False),
    ],
)
def test_tasks_get_consumers_and_agents(
    options: dict[str, str], expected: FanOutAssignment, *, waits: bool
) -> None:
    """Without an agent only consumers. Tasks that may not poll wait for the agent."""
    coordinator = create_coordinator(config(options))

    assert coordinator.assign(RANGES) == expected
    assert ("wait 45 s" in agent_calls(coordinator)) == waits
    coordinator.close()
