"""Which process of a driver is which, and signals to them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.support.processes import marked_processes

ROLES: Final = ("driver", "planner", "agent", "query server", "worker", "daemon", "committer")

_PLANNER: Final = b"python_streaming_source_runner"
_COMMITTER: Final = b"python_streaming_sink_runner"
_WORKER: Final = b"pyspark.worker"
_OURS: Final = {b"sluice.kinesis.agent": "agent", b"sluice.query_server": "query server"}
"""What Sluice starts, by module."""
_JVM: Final = b"org.apache.spark.deploy.SparkSubmit"


@dataclass(frozen=True)
class Target:
    pid: int
    role: str  # one of `ROLES`
    born: str  # when it was started, which tells it from a later one with its id

    def signal(self, number: signal.Signals) -> bool:
        """Sends a signal. Returns False if the process has ended."""
        if (found := _status(self.pid)) is None or found[1] != self.born:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False

    def limit_files(self, size: int | None) -> bool:
        """No file that it writes to may be larger than `size` bytes from now on, as if its disk were full;
        None: as large as it likes. Returns False if the process has ended.
        """
        if (found := _status(self.pid)) is None or found[1] != self.born:
            return False
        with contextlib.suppress(ProcessLookupError):
            _, most = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most if size is None else size, most))
            return True
        return False


def find(mark: str) -> dict[str, list[Target]]:
    """The processes with `mark` in their environment, by role, each role in the order of process ids."""
    commands: dict[int, bytes] = {}
    for pid in marked_processes(mark):
        with contextlib.suppress(OSError):  # gone
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    found: dict[str, list[Target]] = {role: [] for role in ROLES}
    for pid, command in sorted(commands.items()):
        status = _status(pid)
        if status is None:
            continue
        parent, born = status
        # A forked child that has not run its command yet looks like its parent.
        is_forked = commands.get(parent) == command
        role = _role(command, is_forked=is_forked)
        if role is not None:
            found[role].append(Target(pid, role, born))
    return found


def _role(command: bytes, *, is_forked: bool) -> str | None:
    if _JVM in command:
        return "driver"
    if (ours := next((role for module, role in _OURS.items() if module in command), None)) is not None:
        return None if is_forked else ours
    if _PLANNER in command:
        return "planner"
    if _COMMITTER in command:
        return "committer" if is_forked or b"pyspark.daemon" not in command else None
    if _WORKER in command:
        return "worker" if is_forked else "daemon"
    return None


def _status(pid: int) -> tuple[int, str] | None:
    """The parent's id, and the time at which the process was started; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])
