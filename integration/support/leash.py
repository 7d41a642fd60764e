"""Runs a command for as long as standard input stays open, then ends it with everything it started.

The parent holds the other end of the pipe: however it goes, kill -9 included, the pipe closes and the
command with all its children is gone a moment later. Standard library only, so that it starts quickly:
``python -I -S leash.py command argument...``
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE = 3.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe counts
    command = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_default_signals,  # noqa: PLW1509 - there are no threads yet
    )
    threading.Thread(target=_end_with_stdin, args=(command,), daemon=True).start()
    status = command.wait()
    _signal(command, signal.SIGKILL)  # children that outlived it
    return status if status >= 0 else 128 - status


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end_with_stdin(command: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    _signal(command, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(GRACE)
    _signal(command, signal.SIGKILL)


def _signal(command: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command.pid, number)


if __name__ == "__main__":
    sys.exit(main())
