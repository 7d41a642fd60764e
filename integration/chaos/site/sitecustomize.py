"""Python imports this at its start, where this directory is on its path: ``time.time`` is off from then on.

A file that all processes map says by how much, so that the time of day of a whole driver can be set while it
runs: the planning process, the agent and tasks have a clock that is not the service's. Monotonic time stays.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time

_FILE = "SLUICE_CHAOS_CLOCK"
_VALUES = struct.Struct("ddd")
_NANOSECONDS = 1_000_000_000


def _set_off(path: str) -> None:
    real_time = time.time
    with open(path, "rb") as file:  # noqa: PTH123 - before anything else is loaded
        shared = mmap.mmap(file.fileno(), _VALUES.size, prot=mmap.PROT_READ)

    def now() -> float:
        real = real_time()
        offset, rate, since = _VALUES.unpack(shared)
        return float(real + offset + rate * (real - since))

    time.time = now
    time.time_ns = lambda: round(now() * _NANOSECONDS)


if _FILE in os.environ:
    with contextlib.suppress(OSError):  # of a run that is over
        _set_off(os.environ[_FILE])
