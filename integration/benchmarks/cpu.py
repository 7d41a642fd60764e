"""The CPU that Spark takes below this process: its JVM, and its Python workers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_TICK = os.sysconf("SC_CLK_TCK")
_DAEMON = b"pyspark.daemon"


class Cpu(NamedTuple):
    """Seconds of CPU, of programs and of the kernel on their behalf."""

    workers: float
    workers_kernel: float  # workers, workers_kernel: Python processes that run tasks
    jvm: float
    jvm_kernel: float  # jvm, jvm_kernel: the JVM, without its children

    def less(self, other: Cpu) -> Cpu:
        return Cpu(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


def spark_cpu() -> Cpu:
    """Since they were started. Other Python processes, such as those that plan, are left out."""
    parents: dict[int, int] = {}
    times: dict[int, list[float]] = {}
    commands: dict[int, bytes] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            parents[process] = int(fields[1])
            times[process] = [int(field) / _TICK for field in fields[11:15]]
            commands[process] = (stat.parent / "cmdline").read_bytes()

    def ancestors(process: int) -> list[int]:
        found = []
        while (process := parents.get(process, 0)) > 0:
            found.append(process)
        return found

    here = os.getpid()
    jvm = [each for each, parent in parents.items() if parent == here and b"java" in commands[each]]
    workers = [
        each
        for each, command in commands.items()
        if _DAEMON in command and here in ancestors(each) and b"java" not in command
    ]
    user, kernel = (sum(times[each][place] for each in jvm) for place in (0, 1))
    worker_user, worker_kernel = (
        sum(times[each][place] + times[each][place + 2] for each in workers) for place in (0, 1)
    )
    return Cpu(worker_user, worker_kernel, user, kernel)
