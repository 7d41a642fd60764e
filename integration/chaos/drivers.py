"""Starts drivers, one after the other, each from the checkpoints of the last one; and hears what they say."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from integration.chaos.pipeline import COPY, QUERIES, PipelinePlan, consumer_of
from integration.chaos.plan import Incarnation, Shared, draw_incarnation
from integration.chaos.roles import find
from integration.support.drivers import Driver

_ALONE: Final = 15.0
_ENDS_WITHIN: Final = 180.0
"""Seconds in which what a driver has started ends by itself, when the driver was killed."""
_STRATEGIES: Final[Mapping[Shared, Mapping[str, str]]] = {
    "tokens": {
        "rateLimiting": "token-bucket",
        "tokenBucketScope": "query",
        "tokenBucketRate": "2000",
        "tokenBucketBurst": "500",
    },
    "nothing": {},
}
"""Options of the sink. The bucket allows ten times the rate of the puts, for the backlog after a fault."""


class Drivers:
    """At most one driver runs, while the next one warms up; `seed`: decides how each of them is started."""

    def __init__(self, plan: PipelinePlan, seed: int) -> None:
        # the runs of query copy, as it writes them, in their order; with when they began
        self.runs: list[tuple[str, float]] = []
        self.left_behind: list[str] = []  # what drivers that were killed have left running for too long
        self._plan = plan
        self._seed = seed
        self._driver: Driver | None = None
        self._incarnation: Incarnation | None = None
        self._standby: tuple[Driver, PipelinePlan, Incarnation] | None = None
        self._began = 0.0
        self._read = 0
        self._dying: list[tuple[Driver, float]] = []

    @property
    def mark(self) -> str:
        """What the processes of the driver that runs have in their environment."""
        return "nobody" if self._driver is None else self._driver.mark

    @property
    def log(self) -> Path:
        """Of the newest driver."""
        return Path(self._plan.directory, f"driver-{self._plan.attempt}.log")

    @property
    def count(self) -> int:
        return 0 if self._incarnation is None else self._incarnation.number + 1

    def start(self) -> None:
        """Has the next one begin, as soon as it is warm."""
        self._driver, self._plan, self._incarnation = self._standby or self._warm_up(self.count)
        self._standby = None
        self._began = time.monotonic()
        self._read = 0
        stdin = self._driver.process.stdin
        assert stdin is not None
        stdin.write(b"go\n")
        stdin.flush()

    def prepare(self) -> None:
        """Warms the next one up, when the one that runs has had the machine to itself for a while."""
        if self._standby is None and time.monotonic() - self._began >= _ALONE:
            self._standby = self._warm_up(self.count)

    def _warm_up(self, number: int) -> tuple[Driver, PipelinePlan, Incarnation]:
        incarnation = draw_incarnation(self._seed, number, QUERIES)
        master = "local[2]" if incarnation.tries == 1 else f"local[2,{incarnation.tries}]"
        sources = {query: _source(query, incarnation) for query in QUERIES}
        strategy = _STRATEGIES[incarnation.shared]
        plan = replace(self._plan, attempt=number, master=master, sources=sources, strategy=strategy)
        return Driver(plan, "integration.chaos.pipeline"), plan, incarnation

    def kill(self) -> str | None:
        """SIGKILL for the driver and its JVM. What they have started is to find that out by itself."""
        driver = self._driver
        if driver is None or driver.process.poll() is not None:
            return None
        for jvm in find(driver.mark)["driver"]:
            jvm.signal(signal.SIGKILL)
        driver.process.kill()
        driver.process.wait()
        self._dying.append((driver, time.monotonic()))
        return str(driver.process.pid)

    def events(self) -> list[dict[str, Any]]:
        """What the driver has said since the last call."""
        try:
            with self._plan.events.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except OSError:  # it has said nothing yet
            return []
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        found = [json.loads(line) for line in text.splitlines()]
        for event in found:
            if event["event"] == "started" and event["query"] == COPY:
                self.runs.append((event["run"], event["at"]))
        return found

    def has_died(self) -> str | None:
        """Why the driver has ended, where nobody has killed it; None: it has not."""
        driver = self._driver
        if driver is None or driver.process.poll() is None or any(driver is each for each, _ in self._dying):
            return None
        self._dying.append((driver, time.monotonic()))
        return f"exit code {driver.process.returncode}: {driver.log.read_text(errors='replace')[-1500:]}"

    def check_dying(self, *, is_excused: bool) -> None:
        """Looks whether drivers that are dead have left something behind.

        `is_excused`: some of it may be stopped, and cannot end. Its time begins anew.
        """
        now = time.monotonic()
        for driver, since in list(self._dying):
            left = driver.processes()
            self._dying.remove((driver, since))
            if left and (is_excused or now - since <= _ENDS_WITHIN):
                self._dying.append((driver, now if is_excused else since))
            elif left:
                names = [_command(pid) for pid in left]
                self.left_behind.append(f"driver {driver.log.name}: {', '.join(names)}")

    def end(self, seconds: float) -> str | None:
        """Has the driver stop its queries and end, as a user does. Returns the problems with that."""
        driver = self._driver
        assert driver is not None
        for each in (driver, self._standby and self._standby[0]):
            if each is not None:
                assert each.process.stdin is not None
                each.process.stdin.close()
        end = time.monotonic() + seconds
        while driver.process.poll() is None or driver.processes():
            if time.monotonic() > end:
                return f"not ended after {seconds:.0f} s: {[_command(pid) for pid in driver.processes()]}"
            time.sleep(0.1)
        return f"exit code {driver.process.returncode}" if driver.process.returncode else None

    @property
    def pushed(self) -> frozenset[str]:
        """The queries of the driver that read by fan-out."""
        return frozenset() if self._incarnation is None else self._incarnation.pushed


def _source(query: str, incarnation: Incarnation) -> dict[str, str]:
    options = {"shardsPerTask": str(incarnation.shards_per_task)}
    if incarnation.max_records is not None:
        options["maxRecordsPerTrigger"] = str(incarnation.max_records)
    if query in incarnation.pushed:
        options |= {"consumerName": consumer_of(query), "agent": incarnation.agent}
    return options


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"{pid}"
    return f"{pid} {words[-120:].strip()}"
