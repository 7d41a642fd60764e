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
