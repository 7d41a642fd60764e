"""Faults of processes: SIGKILL, SIGSTOP for a while, and a disk that takes nothing any more.

A full disk is a limit of no bytes on the files of the running JVM: like on a full disk, files can be made,
and writing to them fails. It needs no privileges, and hits nothing but the driver.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

from integration.chaos.plan import Fault
from integration.chaos.roles import Target, find

_FULL: Final = 200  # bytes that may still fit, at most


class Strikes:
    """Strikes the processes of the driver that runs, and takes back what can be taken back."""

    def __init__(self) -> None:
        self._stopped: dict[Fault, Target] = {}
        self._full: dict[Fault, Target] = {}

    @property
    def has_stopped(self) -> bool:
        """Whether a process is stopped at the moment."""
        return bool(self._stopped)

    def begin(self, fault: Fault, mark: str) -> str | None:
        """Makes a fault: what it has hit. None where there is nothing to hit.

        `mark`: in the environment of the driver's processes.
        """
        how, _, what = fault.kind.name.partition(" ")
        found = find(mark)
        draw, other, _ = fault.draws
        if how == "fill":
            return self._fill(fault, _chosen(found["driver"], draw), int(other * _FULL))
        if how == "stop":
            return self._stop(fault, _chosen(found[what], draw))
        if what == "all workers":
            targets = found["daemon"] + found["worker"]
        else:
            one = _chosen(found[what], draw)
            targets = [] if one is None else [one]
        killed = [target for target in targets if target.signal(signal.SIGKILL)]
        return ", ".join(str(target.pid) for target in killed) or None

    def end(self, fault: Fault) -> None:
        """Takes a fault back, if the process is still there."""
        if (stopped := self._stopped.pop(fault, None)) is not None:
            stopped.signal(signal.SIGCONT)
        if (full := self._full.pop(fault, None)) is not None:
            full.limit_files(None)

    def clear(self) -> None:
        """Everything runs, and no disk is full."""
        for fault in [*self._stopped, *self._full]:
            self.end(fault)

    def _stop(self, fault: Fault, target: Target | None) -> str | None:
        if target is None or not target.signal(signal.SIGSTOP):
            return None
        self._stopped[fault] = target
        return f"{target.pid} for {fault.seconds:.0f} s"

    def _fill(self, fault: Fault, target: Target | None, left: int) -> str | None:
        if target is None or not target.limit_files(left):
            return None
        self._full[fault] = target
        return f"{left} bytes left for {fault.seconds:.0f} s"


def _chosen(targets: Sequence[Target], draw: float) -> Target | None:
    return targets[int(draw * len(targets))] if targets else None
