"""How the process that plans takes leave: what becomes of consumers that the query registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.kinesis import driver
from sluice.kinesis.consumers import Consumer
from sluice.kinesis.driver import StreamPlanning
from sluice.kinesis.fanout.driver.agent_process import is_alive
from sluice.kinesis.options import source_config_from_options

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/clicks/consumer/app:1"


class FakeLink:
    """Writes down what it is told, in order."""

    def __init__(self, config: object, arns: Mapping[str, str], **_: object) -> None:
        del config, arns
        self.told: list[str] = []

    def start(self) -> None: ...

    def set_registered(self, registered: frozenset[str]) -> None: ...

    def tell_stop(self) -> None:
        self.told.append("stop")

    def close(self) -> None:
        self.told.append("close")


class FakeConsumers:
    def __init__(self, config: object) -> None:
        del config

    def ensure(self, stream: str) -> Consumer:
        return Consumer(stream, ARN, registered=True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> StreamPlanning:
    monkeypatch.setattr(driver, "AgentClient", FakeLink)
    monkeypatch.setattr(driver, "ConsumerRegistrar", FakeConsumers)
    monkeypatch.setattr(driver, "on_stop", lambda _tell: None)
    options = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    return StreamPlanning(source_config_from_options(options, streaming=True))


@pytest.mark.parametrize(
    ("has_hung_up", "driver_lives", "told"),
    [(True, True, "stop"), (True, False, "close"), (False, True, "close")],
)
def test_a_driver_that_hangs_up_and_lives_has_stopped_the_query(
    made: StreamPlanning, monkeypatch: pytest.MonkeyPatch, *, has_hung_up: bool, driver_lives: bool, told: str
) -> None:
    """Its signal may come too late. The word must reach the agent before the link closes."""
    monkeypatch.setattr(driver, "is_alive", lambda _driver: driver_lives)
    link: Any = made._link

    made.close(has_hung_up=has_hung_up)

    assert link.told[0] == told
    assert set(link.told[1:]) <= {"close"}


@pytest.mark.parametrize(("now", "at_load"), [(True, {}), (False, {"clicks": ARN}), (False, {})])
def test_a_batch_read_says_which_consumer_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, now: bool, at_load: dict[str, str]
) -> None:
    """One that it registered, now or at ``load()``: nobody tells when its last task has read."""
    monkeypatch.setattr(FakeConsumers, "ensure", lambda _self, stream: Consumer(stream, ARN, registered=now))
    monkeypatch.setattr(driver, "ConsumerRegistrar", FakeConsumers)
    options = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    config = source_config_from_options(options)
    assert config.fan_out is not None

    driver.bounded_assignment(replace(config, fan_out=replace(config.fan_out, registered=at_load)))

    assert ("stays registered" in caplog.text) == (now or bool(at_load))


def test_a_driver_that_dies_is_seen_to(made: StreamPlanning) -> None:
    """A moment after its connections have closed its children are others'."""
    del made
    parents = iter([7, 7, 1])
    slept: list[float] = []

    assert not is_alive(7, getppid=lambda: next(parents), sleep=slept.append)
    assert len(slept) == 2
    assert is_alive(7, getppid=lambda: 7, sleep=slept.append)
    assert sum(slept) == pytest.approx(2.1)
