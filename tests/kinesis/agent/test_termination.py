"""When the agent on the driver host ends, and what it does then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest

from sluice.kinesis.agent.termination import GRACE, Termination
from sluice.kinesis.shared.launch import STOP

PATIENT = 120.0


class Pipe:
    """The stop pipe, whose other end is the planning process'."""

    def __init__(self) -> None:
        self.now = 100.0
        read, self.write = os.pipe()
        self.read = read
        self.termination = Termination(read, lambda: self.now, check_every=0.01)

    def close(self) -> None:
        os.close(self.write)
        self.write = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.read)
    if made.write >= 0:
        os.close(made.write)


def test_a_stop_is_reported_before_the_link_closes(pipe: Pipe) -> None:
    """Even if the planning process got two signals, and has ended by now."""
    os.write(pipe.write, STOP * 2)
    pipe.close()

    assert pipe.termination.wait_for_reason()


def test_an_end_without_a_word_is_a_crash(pipe: Pipe) -> None:
    """The query will be back, and needs its consumer."""
    pipe.close()

    assert not pipe.termination.wait_for_reason()


def test_sigterm_leaves_time_to_learn_of_a_stop(pipe: Pipe) -> None:
    """It may have been sent to all processes of the query at once."""
    pipe.termination._handle_sigterm(signal.SIGTERM, None)
    pipe.now += GRACE - 0.1
    assert not pipe.termination.is_due
    pipe.termination._handle_sigterm(signal.SIGTERM, None)
    pipe.now += 0.1
    assert pipe.termination.is_due

    os.write(pipe.write, STOP)
    assert pipe.termination.wait_for_reason()


def test_sigterm_ends_the_wait_for_a_planning_process_that_stands_still(pipe: Pipe) -> None:
    """It holds the pipe open, and says nothing."""
    reasons: list[bool] = []
    thread = threading.Thread(target=lambda: reasons.append(pipe.termination.wait_for_reason()))
    thread.start()
    pipe.termination._handle_sigterm(signal.SIGTERM, None)
    pipe.now += GRACE
    thread.join(PATIENT)

    assert reasons == [False]


@pytest.mark.parametrize(("seconds", "is_crash"), [(0.0, True), (50.0, True), (70.0, False)])
def test_a_planning_process_that_lives_on_has_not_crashed(seconds: float, *, is_crash: bool) -> None:
    """It has closed the link to replace its agent. A process that ends may take a while."""
    now = 100.0

    def is_alive() -> bool:
        nonlocal now
        now += 1.0
        return now <= 100.0 + seconds

    termination = Termination(0, lambda: now, is_planner_alive=is_alive, check_every=0.0)

    assert termination.wait_for_crash() == is_crash


def test_only_sigkill_ends_it_at_once() -> None:
    """Signals come between any two instructions, and while it waits."""
    code = """
        import os, sys
        from sluice.kinesis.agent.termination import Termination

        termination = Termination(0)
        termination.handle_signals()
        print("ready", flush=True)
        print(termination.wait_for_reason(), termination._asked_at is not None)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = (sys.executable, "-c", textwrap.dedent(code))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        printed, _ = process.communicate(STOP.decode(), PATIENT)

        assert printed == "True True\n"
        assert process.wait(PATIENT) == 0
