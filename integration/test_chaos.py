"""A run of chaos leaves nothing behind, however it ends. What it counts is tested in ``tests/chaos``."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.chaos.roles import find
from integration.support.paths import ROOT
from integration.support.processes import marked_processes
from integration.support.queries import WAIT, wait_until

MARK = "SLUICE_TEST_OF_CHAOS"


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A run that is starting, and what all its processes have in their environment."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        (sys.executable, "-m", "integration.chaos", "--minutes", "5", "--output", str(tmp_path / "output")),
        cwd=ROOT,
        env={**os.environ, MARK: mark, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    yield process, f"{MARK}={mark}"
    process.kill()
    process.wait()
    for left in marked_processes(f"{MARK}={mark}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_and_no_directory(
    chaos: tuple[subprocess.Popen[bytes], str], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C, the end of its time in continuous integration, and SIGKILL; also where a driver is stopped,
    which cannot find out that its parent is dead.
    """
    process, mark = chaos
    # The first one that is found may only make the driver's command line, and be gone by now.
    wait_until(lambda: [jvm for jvm in find(mark)["driver"] if jvm.signal(signal.SIGSTOP)], "a driver")
    process.send_signal(number)
    status = process.wait(WAIT)
    assert status == (-number if number == signal.SIGKILL else 130)
    wait_until(lambda: not marked_processes(mark), "all processes to be gone")
    wait_until(lambda: not list(tmp_path.glob("sluice-*")), "its directories to be gone")
