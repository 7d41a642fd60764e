"""Kills what a run has left, when the run is over or dead: ``python -I -S warden.py <mark> <directory>``.

The run holds the other end of standard input. However the run goes, kill -9 included, the pipe closes; then
all processes with `mark` in their environment get SIGKILL, those that are stopped too, until there are none,
and the directory goes. Standard library only, and no import of ours: nothing may keep it from its work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

LIMIT = 30.0  # seconds


def main() -> int:
    """Returns 1 where a process could not be killed."""
    mark, directory = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the pipe counts
    while os.read(0, 4096):
        pass
    end = time.monotonic() + LIMIT
    while left := marked(mark):
        if time.monotonic() > end:
            print(f"still there: {left}", file=sys.stderr)
            return 1
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(directory, ignore_errors=True)
    return 0


def marked(mark: str) -> list[int]:
    """The ids of the processes that have `mark` in their environment; dead ones have none."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone, or somebody else's
            if mark.encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
