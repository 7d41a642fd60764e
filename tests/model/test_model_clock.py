"""The service's clock as the machine's, off by something."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from integration.model import SECOND, RealClock, clock

NOW = 1_700_000_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The machine's time, which stands still until ``machine.passed`` is raised."""
    machine = SimpleNamespace(passed=0.0)
    machine.time = lambda: NOW + machine.passed
    machine.monotonic = lambda: machine.passed
    monkeypatch.setattr(clock, "time", machine)
    return machine


def test_it_is_off_and_drifts(machine: SimpleNamespace) -> None:
    service = RealClock(offset=5.0, drift=0.1)
    machine.passed = 10.0
    assert service.now() == (NOW + 10 + 5 + 1) * SECOND
    assert service.elapsed() == 10.0


def test_its_rate_changes_without_a_step(machine: SimpleNamespace) -> None:
    """What it has gained it keeps, and only its time of day gains."""
    service = RealClock(drift=0.1)
    machine.passed = 10.0
    before = service.now()
    service.drift(-0.2)
    assert service.now() == before
    machine.passed = 20.0
    assert service.now() == (NOW + 20 + 1 - 2) * SECOND
    service.drift(0.0)
    service.step(-7.0)
    machine.passed = 100.0
    assert service.now() == (NOW + 100 - 1 - 7) * SECOND
    assert service.elapsed() == 100.0
