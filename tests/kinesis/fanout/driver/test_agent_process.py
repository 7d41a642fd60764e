"""What ends a process tells its agent before it does."""

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
def test_a_process_that_is_told_to_end_says_so_and_ends(before: str, printed: list[str], status: int) -> None:
    """As it would have: by the signal, or by what was there to handle it."""
    code = textwrap.dedent(STOPPED).format(before=before, signals="[signal.SIGTERM]")

    assert _end(code) == (printed, status)


def test_a_second_signal_does_not_cut_the_word_short() -> None:
    """Spark sends two when the query is stopped in the middle of a batch."""
    code = textwrap.dedent(STOPPED).format(before="", signals="[signal.SIGTERM] * 2")

    printed, status = _end(code)

    assert printed[:2] == ["ready", "told"]
    assert status == -signal.SIGTERM


def _end(code: str) -> tuple[list[str], int]:
    """What a process prints that is told to end, and how it ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read().split()
        return ["ready", *rest], process.wait(PATIENT)
