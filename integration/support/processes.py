"""Finds processes by a variable in their environment, which all their children inherit."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path


def marked_processes(mark: str) -> list[int]:
    """The ids of all processes that have `mark` in their environment, dead ones not counted."""
    table = Path("/proc")
    if table.joinpath("self", "environ").exists():
        found = []
        for file in table.glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # gone, or somebody else's
                if mark.encode() in file.read_bytes():
                    found.append(int(file.parent.name))
        return found
    command = ("ps", "axeww")  # where there is no /proc
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if mark in line]
