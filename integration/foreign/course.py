"""The course: drivers and the server are killed in the middle, and then every row is looked for."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from integration.foreign.driver import ForeignPlan
from integration.foreign.rows import PER_BATCH, ROWS
from integration.foreign.servers import ForeignServer
from integration.foreign.target import Target
from integration.foreign.targets import TARGETS
from integration.support.drivers import Driver, started_drivers
from integration.support.processes import marked_processes
from integration.support.servers import LOOPBACK, answers, free_port, leashed, when_ready

_DOWN: Final = 7.0  # seconds that the server is away
_KILLS: Final = (2, 4)
"""The driver is killed when so many batches are committed."""
_SERVER_KILL: Final = 6
"""And the server, when so many are."""
_LATER: Final = 0.6
"""Seconds after that, at most: a batch takes about one."""
_BATCHES: Final = ROWS // PER_BATCH
_READY_WITHIN: Final = 180.0
_SHOWN: Final = 3
_MARK: Final = "SLUICE_FOREIGN"


@dataclass
class Result:
    server: str
    version: str
    target: str
    found: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    seconds: float = 0.0
    kills: int = 0
    restarts: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """In one word, or the problem."""
        return "; ".join(self.problems) or "right"


def take_course(
    server: ForeignServer, target: str, installed: str, logs: Path, say: Callable[[str], None]
) -> Result:
    """Takes the course, and leaves no process and no file behind but the logs.

    `installed`: what `server.install` returned; `logs`: a directory that takes the logs of drivers and
    server.
    """
    result = Result(server.name, server.version, target)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sluice-foreign-") as made:
        directory = Path(made)
        try:
            with _running(server, installed, directory) as process:
                place = TARGETS[target](process.endpoint, directory)
                options = when_ready(place.prepare)
                plan = ForeignPlan(0, made, target, dict(place.source), options, _BATCHES)
                cut = _run(process, plan, result, say)
                say("reading back")
                judge(place, cut, result)
                result.problems += place.check()
        except Exception as error:  # noqa: BLE001 - one server's fault is no other's
            result.problems.append(_reason(error))
        finally:
            for log in (*directory.glob("driver-*.log"), *directory.glob("server.log")):
                logs.joinpath(f"{server.name}-{target}-{log.name}").write_bytes(log.read_bytes())
    result.seconds = time.monotonic() - began
    return result


class _Process:
    """The server, which can be killed and started again on its port and its data."""

    def __init__(self, server: ForeignServer, installed: str, directory: Path) -> None:
        self._port = free_port()
        self._data = directory / "server"
        self._data.mkdir()
        self._directory = directory
        self._command = server.command(installed, self._port, self._data)
        self._end = server.end
        self._mark = uuid.uuid4().hex
        self._leash = contextlib.ExitStack()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        settings = {_MARK: self._mark, "TMPDIR": str(self._data)}
        process = self._leash.enter_context(
            leashed(self._command, self._directory, settings=settings, log="server.log")
        )
        _wait(lambda: process.poll() is not None or answers(self._port), "the server answers")
        if process.poll() is not None:
            log = self._directory.joinpath("server.log").read_text(errors="replace")
            raise RuntimeError(f"the server does not start: {log[-1000:]}")

    def kill(self) -> None:
        """Ends it at once, and waits until it has ended."""
        for pid in marked_processes(f"{_MARK}={self._mark}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, self._end)
        self.stop()

    def stop(self) -> None:
        self._leash.close()


@contextlib.contextmanager
def _running(server: ForeignServer, installed: str, directory: Path) -> Iterator[_Process]:
    process = _Process(server, installed, directory)
    try:
        process.start()
        yield process
    finally:
        process.stop()


def _run(server: _Process, plan: ForeignPlan, result: Result, say: Callable[[str], None]) -> set[int]:
    """Returns the batches that may have been written twice."""
    cut: set[int] = set()
    with started_drivers() as drivers:
        for batches in _KILLS:
            say(f"driver {plan.attempt} is killed after {batches} batches")
            cut |= _start(drivers, plan, batches)
            drivers[-1].kill()
            result.kills += 1
            plan = replace(plan, attempt=plan.attempt + 1)
        say(f"driver {plan.attempt}: the server is killed after {_SERVER_KILL} batches, for {_DOWN:.0f} s")
        cut |= _start(drivers, plan, _SERVER_KILL)
        server.kill()
        time.sleep(_DOWN)
        server.start()
        result.restarts += 1
        say(f"the server is back, {plan.committed} batches are committed")
        drivers[-1].wait_for("done\n")
        plan = replace(plan, attempt=plan.attempt + 1, batches=_BATCHES + 2)
        say(f"driver {plan.attempt} restarts from the checkpoint, with nothing new to write")
        _start(drivers, plan, _BATCHES)
        drivers[-1].wait_for("done\n")
    return cut


def _start(drivers: list[Driver], plan: ForeignPlan, batches: int) -> set[int]:
    """Starts a driver, and waits until so many batches are committed and it is somewhere in the next."""
    drivers.append(Driver(plan, "integration.foreign.driver"))
    drivers[-1].wait_until(lambda: plan.committed >= batches, f"{batches} batches")
    time.sleep(random.uniform(0, _LATER))
    return {plan.committed, plan.committed + 1}


def _reason(error: Exception) -> str:
    """One line: the last that a driver's log, which may be part of the error, has about an error."""
    lines = [line for line in str(error).splitlines() if "Error:" in line and not line.startswith("\t")]
    return (lines or [f"{type(error).__name__}: {str(error)[-300:]}"])[-1][:300]


def judge(target: Target, cut: set[int], result: Result) -> None:
    """Compares every row that is there with the one that was written.

    `cut`: the batches that may have been written twice; `result`: takes the counts and the problems.
    """
    seen: Counter[int] = Counter()
    for row in target.read():
        result.found += 1
        number = row["id"]
        seen[number] += 1
        if number >= ROWS or row != target.expected(number):
            result.wrong += 1
            if result.wrong <= _SHOWN:
                result.problems.append(f"wrong: {str(row)[:200]}")
    result.lost = ROWS - sum(number in seen for number in range(ROWS))
    doubled = [number for number, times in seen.items() if times > 1]
    result.doubled = result.found - len(seen)
    if result.lost:
        result.problems.append(f"{result.lost} lost")
    if target.is_once and doubled:
        result.problems.append(f"{len(doubled)} doubled")
    elif unexplained := [number for number in doubled if number // PER_BATCH not in cut]:
        result.problems.append(f"{len(unexplained)} doubled in batches that nothing has cut short")


def _wait(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _READY_WITHIN
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not after {_READY_WITHIN:.0f} s")
        time.sleep(0.1)
