"""Brings the jars of a server from Maven Central."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

__all__ = ["copy_jars"]

_ATTEMPTS = 3
_PAUSE = 5.0  # seconds; a network may fail for a moment


def copy_jars(pom: Path, directory: Path) -> None:
    """Copies the dependencies of a POM into a directory.

    Raises:
        RuntimeError: Maven fails; it says why.
    """
    command = (
        "mvn",
        "-q",
        "-B",
        "-f",
        str(pom),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={directory}",
    )
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: PLW1510
        if done.returncode == 0:
            return
    raise RuntimeError(f"Maven does not bring what {pom} asks for:\n{done.stdout[-2000:]}")
