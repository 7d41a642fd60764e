"""The service's clock, which is not the reader's.

A clock has two hands. `now` is the time of day, which stamps records, expires them and answers in the HTTP
``Date`` header; it may be off, drift and step. `elapsed` never steps: limits over time and lives of iterators
go by it, as a service's do.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

SECOND: Final = 1_000_000
"""In microseconds, the unit of instants."""


class Clock(Protocol):
    """The time as the service has it."""

    def now(self) -> int:
        """Microseconds since the epoch."""

    def elapsed(self) -> float:
        """Seconds since some moment; never less than before."""

    def sleep(self, seconds: float) -> None:
        """Returns when `seconds` have passed."""

    def step(self, seconds: float) -> None:
        """Sets the time of day forward, or back where `seconds` is negative."""

    def advance(self, seconds: float) -> None:
        """Time passes by both hands, for the service alone."""


class ManualClock:
    """Stands still until somebody sleeps or `advance` is called; `now`: microseconds since the epoch."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._elapsed = 0.0
        self.slept = 0.0  # seconds slept in all

    def now(self) -> int:
        return self._now

    def elapsed(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Time passes, and nobody waits."""
        self.slept += seconds
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Time passes by both hands."""
        self._now += round(seconds * SECOND)
        self._elapsed += seconds

    def step(self, seconds: float) -> None:
        self._now += round(seconds * SECOND)


class RealClock:
    """The machine's clock, off by something.

    `offset`: seconds ahead of the machine's time of day; negative: behind; `drift`: seconds that are gained
    each second, for example 0.001; `steps`: seconds from now to by how much the time of day is set forward
    then.
    """

    def __init__(
        self, offset: float = 0.0, drift: float = 0.0, steps: dict[float, float] | None = None
    ) -> None:
        self._started = time.monotonic()
        self._skipped = 0.0
        self._offset = offset
        self._drift = drift
        self._steps = dict(steps or {})

    def now(self) -> int:
        age = self.elapsed()
        steps = sum(by for at, by in self._steps.items() if at <= age)
        return round((time.time() + self._offset + self._skipped + self._drift * age + steps) * SECOND)

    def elapsed(self) -> float:
        return time.monotonic() - self._started + self._skipped

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def step(self, seconds: float) -> None:
        self._offset += seconds

    def advance(self, seconds: float) -> None:
        self._skipped += seconds
