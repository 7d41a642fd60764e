"""The demo: what it proves, how it ends, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from integration.demo.events import Click
from integration.demo.pipeline import CONSUMER
from integration.demo.proof import compare_clicks
from integration.support.kinesis import Stored
from integration.support.paths import ROOT

PATIENCE = 60.0
CLICK = Click("1-1", "user-1", "/toys/kite", "buy", 499, 1_767_225_601_500, 1_767_225_602_000)


def process_table() -> list[str]:
    """A line a process, its environment included."""
    if Path("/proc/self/environ").exists():  # a small Linux has no ps
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().decode(errors="replace")
                lines.append(f"{process.name} {environment}")
        return lines
    table = subprocess.run(("/bin/ps", "axeww"), capture_output=True, text=True, check=True).stdout
    return table.splitlines()


@dataclass(frozen=True)
class Running:
    """A demo in a separate process group; all processes that it starts have `mark` in their environment."""

    process: subprocess.Popen[str]
    temporary: Path
    mark: str

    def left_behind(self) -> list[str]:
        """Processes of it, and files in its temporary directory."""
        processes = [line for line in process_table() if self.mark in line]
        return processes + [str(path) for path in self.temporary.iterdir()]

    def check_nothing_is_left(self) -> None:
        """Processes may take a moment to end."""
        end = time.monotonic() + PATIENCE
        while left := self.left_behind():
            assert time.monotonic() < end, left
            time.sleep(0.05)

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(f"the demo ended before it said {text!r}")


@pytest.fixture
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """The demo with so many seconds of clicks."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        (sys.executable, "-m", "integration.demo", "--seconds", request.param, "--rate", "200"),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), "SLUICE_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    ) as process:
        yield Running(process, temporary, mark)
        if process.poll() is None:
            process.kill()


@pytest.mark.parametrize("demo", ["5"], indirect=True)
def test_the_demo_proves_its_output_and_leaves_nothing(demo: Running) -> None:
    """It ends by itself with status 0, every click and total accounted for, no process and no file left."""
    output, _ = demo.process.communicate(timeout=600)

    assert demo.process.returncode == 0, output
    assert "clicks: equal" in output
    assert "totals: equal" in output
    assert f"consumer/{CONSUMER}:" in output
    assert f"consumer {CONSUMER} ACTIVE, 4 of 4 subscribed" in output
    assert f"consumer {CONSUMER} deregistered" in output
    demo.check_nothing_is_left()


@pytest.mark.parametrize("demo", ["600"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(demo: Running, number: signal.Signals) -> None:
    """Ctrl-C, which reaches every process of the terminal, and a plain kill end it."""
    demo.wait_for("putting 200 clicks")
    time.sleep(3)  # in the midst of it

    if number == signal.SIGINT:
        os.killpg(demo.process.pid, number)
    else:
        demo.process.send_signal(number)
    output, _ = demo.process.communicate(timeout=600)

    assert demo.process.returncode == 130, output
    assert "Traceback" not in output
    demo.check_nothing_is_left()


def test_the_proof_finds_what_is_missing_changed_or_twice() -> None:
    """A lost record, a record too many and a changed one each make the comparison unequal."""
    first, second = CLICK, replace(CLICK, id="1-2")
    good = [stored(first), stored(second)]

    assert compare_clicks([first, second], good).is_equal
    assert compare_clicks([first, second], good[:1]).missing == 1
    assert compare_clicks([first, second], [*good, good[0]]).surplus == 1
    changed = stored(replace(second, price=1))
    assert not compare_clicks([first, second], [good[0], changed]).is_equal


def stored(click: Click) -> Stored:
    row = compare_clicks([click], []).expected
    return Stored("shard", 1, click.user, next(iter(row)).encode())
