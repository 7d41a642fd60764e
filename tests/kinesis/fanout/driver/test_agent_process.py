"""A process that is told to end tells its agent first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

PATIENT = 120.0

STOPPED = """
    import os, signal, sys, time
    from sluice.kinesis.fanout.driver.agent_process import on_stop

    signals = {signals}

    def tell():
        while len(signals) > 1:
            os.kill(os.getpid(), signals.pop())
        print("told", flush=True)

    {before}
    on_stop(tell)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("before", "printed", "status"),
    [
        ("", ["ready", "told"], -signal.SIGTERM),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))", ["ready", "told"], 3),
    ],
)
def test_sigterm_is_announced_before_the_process_ends(before: str, printed: list[str], status: int) -> None:
    """The process ends as it would have without: by the signal, or by the handler that was there before."""
    code = textwrap.dedent(STOPPED).format(before=before, signals="[signal.SIGTERM]")

    assert _end(code) == (printed, status)


def test_a_second_signal_does_not_end_the_process_too_soon() -> None:
    """Spark sends two when a query is stopped in the middle of a batch."""
    code = textwrap.dedent(STOPPED).format(before="", signals="[signal.SIGTERM] * 2")

    printed, status = _end(code)

    assert printed[:2] == ["ready", "told"]
    assert status == -signal.SIGTERM


def _end(code: str) -> tuple[list[str], int]:
    """Runs a process and sends it SIGTERM. Returns what it prints, and its exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read().split()
        return ["ready", *rest], process.wait(PATIENT)
