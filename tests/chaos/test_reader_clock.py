"""The time of day of the drivers' Python processes, which is set while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from integration.chaos.reader_clock import ReaderClock

NEAR = 300.0  # seconds that may pass between two looks
ECHO = """
import sys, time
for line in sys.stdin:
    real = time.clock_gettime(time.CLOCK_REALTIME)
    print(time.time() - real, time.time_ns() / 1e9 - real, flush=True)
"""


def test_processes_see_a_change_at_once(tmp_path: Path) -> None:
    """Ahead, behind, and on its way."""
    clock = ReaderClock(tmp_path / "clock")
    process = subprocess.Popen(
        (sys.executable, "-c", ECHO),
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def offset() -> float:
        print(file=process.stdin, flush=True)
        assert process.stdout is not None
        seconds, nanoseconds = map(float, process.stdout.readline().split())
        assert abs(nanoseconds - seconds) < NEAR
        return seconds

    assert abs(offset()) < NEAR
    for seconds in (900.0, -3000.0):
        clock.set_offset(seconds)
        assert abs(offset() - seconds) < NEAR
    clock.drift(1e6)
    first = offset()
    assert offset() > first
    clock.drift(0.0)
    assert abs(offset() - clock.offset) < NEAR
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_without_a_file_the_time_is_the_machines(tmp_path: Path) -> None:
    """A process that is started when its run is over."""
    clock = ReaderClock(tmp_path / "clock")
    (tmp_path / "clock").unlink()
    command = (sys.executable, "-c", "import time; print(time.time())")
    env = {**os.environ, **clock.environment}
    answer = subprocess.run(command, env=env, capture_output=True, check=True, text=True)
    assert abs(float(answer.stdout) - time.time()) < NEAR
