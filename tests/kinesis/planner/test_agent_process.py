"""A process that ends on request stops its agent first; an agent that does not end is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner import agent_process
from sluice.kinesis.shared.launch import AgentSetup

PATIENT = 120.0

CONFIG = source_config_from_options({"streamName": "s", "region": "us-east-1", "consumerName": "app"})
assert CONFIG.fan_out is not None
SETUP = AgentSetup.beside_driver(CONFIG)

STOPPED = """
    import os, signal, sys, time
    from sluice.kinesis.planner.agent_process import StopSignals

    # What runs the tests may have had signals ignored: nohup does, and so does a shell in the background.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signals = {signals}

    def tell():
        while len(signals) > 1:
            os.kill(os.getpid(), signals.pop())
        print("told", flush=True)

    {before}
    stop = StopSignals()
    stop.handle(tell)
    {ready}
"""
READY = 'print("ready", flush=True); time.sleep(60)'


@pytest.mark.parametrize(
    ("before", "printed", "status"),
    [
        ("", ["ready", "told"], -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", ["ready", "told"], 3),
    ],
)
def test_sigterm_is_announced_before_the_process_ends(before: str, printed: list[str], status: int) -> None:
    """The process ends as it would have without: by the signal, or by the handler that was there before."""
    code = textwrap.dedent(STOPPED).format(before=before, signals="[signal.SIGTERM]", ready=READY)

    assert _end(code) == (printed, status)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGHUP, -signal.SIGHUP)]
)
def test_every_signal_that_ends_the_process_is_announced(number: signal.Signals, status: int) -> None:
    """A terminal sends SIGINT or SIGHUP to all processes, and Spark's worker daemon SIGHUP to its workers."""
    code = textwrap.dedent(STOPPED).format(before="", signals="[0]", ready=READY)

    assert _end(code, number) == (["ready", "told"], status)


def test_a_signal_that_the_process_ignores_is_no_stop() -> None:
    """An interrupt in a shell or a notebook ends what the user runs there, and not the queries."""
    before = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code = textwrap.dedent(STOPPED).format(before=before, signals="[0]", ready=READY)

    assert _end(code, signal.SIGINT, signal.SIGTERM) == (["ready", "told"], -signal.SIGTERM)


@pytest.mark.parametrize(
    ("wait", "printed"),
    [("time.sleep(1)", ["ready", "learnt", "told"]), ("stop.sleep(60)", ["ready", "told"])],
)
@pytest.mark.parametrize("where", ["learn()", "in_thread()"])
def test_a_pending_answer_is_passed_on_first(wait: str, printed: list[str], where: str) -> None:
    """A signal is held back in the main thread or another one, but not while it sleeps between two calls."""
    ready = f"""
    def learn():
        with stop.held():
            print("ready", flush=True)
            {wait}
            print("learnt", flush=True)
    def in_thread():
        import threading
        threading.Thread(target=learn, daemon=True).start()
    {where}
    time.sleep(60)
    """
    code = textwrap.dedent(STOPPED).format(before="", signals="[0]", ready=textwrap.dedent(ready))

    assert _end(code) == (printed, -signal.SIGTERM)


def test_a_second_signal_does_not_end_the_process_too_soon() -> None:
    """Spark sends two when a query is stopped in the middle of a batch."""
    code = textwrap.dedent(STOPPED).format(before="", signals="[signal.SIGTERM] * 2", ready=READY)

    printed, status = _end(code)

    assert printed[:2] == ["ready", "told"]
    assert status == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGSTOP, None])
def test_an_agent_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None
) -> None:
    """Stopped, so that it ends by SIGKILL alone, or deaf to its link."""
    deaf = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(agent_process, "agent_command", lambda *_descriptors: deaf)
    agent = agent_process.AgentProcess(SETUP)
    if number is not None:
        os.kill(agent.pid, number)

    assert agent.end(0.0) == -signal.SIGKILL
    assert not agent.tell_stop()
    agent.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_agent_starts_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """It takes a second until it can handle signals. Its parent's own signals are not held back by then."""
    code = """
        import os, signal, time

        while not signal.sigpending():  # it comes before the handlers, however late it comes
            time.sleep(0.01)
        from sluice.kinesis.agent.termination import Termination

        termination = Termination(0)
        termination.handle_signals()
        os._exit(7 if termination._asked_at is None else 8)
    """
    command = (sys.executable, "-c", textwrap.dedent(code))
    monkeypatch.setattr(agent_process, "agent_command", lambda *_descriptors: command)
    agent = agent_process.AgentProcess(SETUP)
    os.kill(agent.pid, number)

    assert agent.end(PATIENT) == (8 if number == signal.SIGTERM else 7)
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_stop_of_an_ended_agent_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the pipe any more. An error in a signal handler would keep the process from ending."""
    monkeypatch.setattr(agent_process, "agent_command", lambda *_descriptors: (sys.executable, "-c", ""))
    agent = agent_process.AgentProcess(SETUP)
    agent._process.wait(PATIENT)

    assert not agent.tell_stop()

    assert agent.end(PATIENT) == 0


def test_a_process_that_cannot_be_started_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again and again."""
    monkeypatch.setattr(agent_process, "agent_command", lambda *_descriptors: ("/does/not/exist",))
    before = set(Path("/dev/fd").iterdir())
    for _ in range(3):
        with pytest.raises(OSError, match="/does/not/exist"):
            agent_process.AgentProcess(SETUP)

    assert set(Path("/dev/fd").iterdir()) - before == set()


def _end(code: str, *numbers: signal.Signals) -> tuple[list[str], int]:
    """Runs a process and sends it signals, or else SIGTERM. Returns what it prints, and its exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        (sys.executable, "-c", code),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in numbers or (signal.SIGTERM,):
            process.send_signal(number)
        rest = process.stdout.read().split()
        return ["ready", *rest], process.wait(PATIENT)
