"""The Python that pages of the documentation show, to run it as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from integration.support.paths import ROOT
from integration.support.spark import JVM_OPTIONS


def printed(page: str) -> list[str]:
    """Returns the Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def quickstart(directory: Path) -> str:
    """Returns the Quickstart as one program, which ends by reading the copies.

    `directory`: where its checkpoint is.
    """
    create, read, write = printed("docs/index.md")
    again = read.replace('"streamName", "clicks"', '"streamName", "clicks-upper"')
    (checkpoint,) = re.findall(r'"checkpointLocation", "([^"]+)"', write)
    return f"{create}\n{read}\n{write}\n{again}".replace(checkpoint, str(directory / "checkpoint"))


def check_quickstart(shown: str) -> None:
    """Fails unless the program has shown 20 rows of either stream; `show` prints no more."""
    assert [shown.count(text) for text in ("|click ", "|CLICK ")] == [20, 20], shown


def run(program: str, directory: Path, endpoint: str, **environment: str) -> str:
    """Runs a program, with a service that the environment names. Returns what it prints."""
    done = subprocess.run(
        (sys.executable, "-c", program),
        cwd=directory,
        env={
            **os.environ,
            "AWS_ENDPOINT_URL_KINESIS": endpoint,
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={directory} {os.environ[JVM_OPTIONS]}",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # A first run that ends with a stack trace looks as if it had failed.
    assert "\tat " not in done.stderr, done.stderr[-6000:]
    return done.stdout
