"""Runs a command for as long as standard input stays open, then ends it with everything it started.

The parent holds the other end of the pipe: however it goes, kill -9 included, the pipe closes and the
command with all its children is gone a moment later. A parent that had no time to send a byte first is
dead: then the directory given goes too. Standard library only, so that it starts quickly:
``python -I -S leash.py directory command argument...``
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

GRACE = 3.0  # seconds between SIGTERM and SIGKILL


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe counts
    command = subprocess.Popen(
        sys.argv[2:],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_default_signals,  # noqa: PLW1509 - there are no threads yet
    )
    orphaned = threading.Event()
    watcher = threading.Thread(target=_end_with_stdin, args=(command, orphaned), daemon=True)
    watcher.start()
    status = command.wait()
    _signal(command, signal.SIGKILL)  # children that outlived it
    if orphaned.is_set():
        shutil.rmtree(sys.argv[1], ignore_errors=True)
    return status if status >= 0 else 128 - status


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _end_with_stdin(command: subprocess.Popen[bytes], orphaned: threading.Event) -> None:
    if not os.read(0, 1):
        orphaned.set()
    _signal(command, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(GRACE)
    _signal(command, signal.SIGKILL)


def _signal(command: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command.pid, number)


if __name__ == "__main__":
    sys.exit(main())
