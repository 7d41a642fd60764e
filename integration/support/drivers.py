"""A whole driver with its JVM and Python workers, for tests that kill it, and what it leaves on disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from integration.support.fan_out import MARK
from integration.support.paths import ROOT
from integration.support.processes import marked_processes
from integration.support.queries import wait_until

TIMEOUT = 300.0  # only broken code takes as long, on the busiest machine

Line = tuple[str, str, int, str]
"""Shard, sequence number, sub-sequence number, data in hex."""


class Plan(Protocol):
    @property
    def attempt(self) -> int: ...
    @property
    def directory(self) -> str: ...
    def to_json(self) -> str: ...


class Driver:
    """A driver with its JVM and Python workers; all of them have `mark` in their environment.

    `plan`: its input, as JSON; `module`: what it runs.
    """

    def __init__(self, plan: Plan, module: str = "integration.support.replay_driver") -> None:
        self.mark = uuid.uuid4().hex
        self.log = Path(plan.directory, f"driver-{plan.attempt}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-m", module, plan.to_json()),
                cwd=ROOT,
                env={**os.environ, MARK: self.mark},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[int]:
        """All there are of it. Python workers are in separate process groups."""
        return marked_processes(self.mark)

    def kill_only_driver(self) -> None:
        """SIGKILL for the driver and its JVM; the rest finds that out by itself."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)

    def kill(self) -> None:
        """SIGKILL for the driver, the JVM and the workers, and none is left when this returns."""
        alive = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # driver and JVM at once
        while alive:
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            alive = self.processes()
        self.process.wait(TIMEOUT)
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Lets it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(TIMEOUT) == 0, self.log.read_text()
        wait_until(lambda: not self.processes(), "the driver's processes are gone")

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.log.read_text(), text)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        def check() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return holds()

        try:
            wait_until(check, what, timeout=TIMEOUT)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the driver's log:\n{self.log.read_text()}") from None


@dataclass(frozen=True)
class Outcome:
    whole: Mapping[int, Mapping[int, Sequence[Line]]]  # batch, attempt, rows
    parts: Mapping[int, Mapping[int, Sequence[Line]]]  # the same of what was cut short

    @classmethod
    def of(cls, output: Path) -> Outcome:
        return cls(_read(output, "jsonl"), _read(output, "part"))

    @property
    def rows(self) -> list[Line]:
        """The union of all batches, each as its last attempt had it."""
        return [row for attempts in self.whole.values() for row in attempts[max(attempts)]]

    def replayed(self) -> list[int]:
        """The batches that more than one attempt read, in whole or in part."""
        return [batch for batch in self.whole if len({*self.whole[batch], *self.parts.get(batch, {})}) > 1]

    def check_replays(self) -> None:
        """The same rows for the same batch, in each shard in the same order; parts are beginnings of it."""
        for batch, attempts in self.whole.items():
            last = by_shard(attempts[max(attempts)])
            for rows in attempts.values():
                assert by_shard(rows) == last, f"batch {batch}"
            for rows in self.parts.get(batch, {}).values():
                for shard, part in by_shard(rows).items():
                    assert part == last[shard][: len(part)], f"batch {batch}"


def _read(output: Path, suffix: str) -> dict[int, dict[int, list[Line]]]:
    found: dict[int, dict[int, list[Line]]] = defaultdict(dict)
    for file in output.glob(f"*.{suffix}"):
        batch, attempt = map(int, file.stem.split("-"))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[batch][attempt] = [(str(a), str(b), int(c), str(d)) for a, b, c, d in lines]
    return dict(sorted(found.items()))


def by_shard(rows: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


@contextlib.contextmanager
def started_drivers() -> Iterator[list[Driver]]:
    """Drivers that a test adds here are ended when it ends."""
    started: list[Driver] = []
    try:
        yield started
    finally:
        for driver in started:
            driver.kill()
    assert [process for driver in started for process in driver.processes()] == []
