"""The README's first screen, and the quickstart, work as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.servers import Server
from integration.support.spark import JVM_OPTIONS

FIRST_SCREEN = 2  # blocks: the source, the sink


def printed(page: str) -> list[str]:
    """The Python that a page shows, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


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
    return done.stdout


def test_the_first_screen_works_as_printed(streams: Streams, tmp_path: Path) -> None:
    """The two examples, one after the other in a fresh Python, copy a stream as they say."""
    program = "\n".join(printed("README.md")[:FIRST_SCREEN])
    source, target = re.findall(r'"streamName", "([^"]+)"', program)
    regions = set(re.findall(r'"region", "([^"]+)"', program))
    checkpoint = re.findall(r'"checkpointLocation", "([^"]+)"', program)[0]
    there = Streams(streams.endpoint, region=regions.pop())
    there.create(2, name=source)
    there.create(1, name=target)
    there.put(source, [(f"user-{number}", b"click %d" % number) for number in range(100)])

    run(program.replace(checkpoint, str(tmp_path / "checkpoint")), tmp_path, streams.endpoint)

    assert not regions
    assert sorted((record.partition_key, record.data) for record in there.read(target)) == sorted(
        (f"user-{number}", b"CLICK %d" % number) for number in range(100)
    )


def test_the_quickstart_works_as_printed(moto: Server, tmp_path: Path) -> None:
    """It makes streams, shows rows and copies them, with moto for the service, as the page has it."""
    create, read, write = printed("docs/index.md")
    again = read.replace('"streamName", "clicks"', '"streamName", "clicks-upper"')
    (checkpoint,) = re.findall(r'"checkpointLocation", "([^"]+)"', write)
    program = f"{create}\n{read}\n{write}\n{again}".replace(checkpoint, str(tmp_path / "checkpoint"))

    shown = run(program, tmp_path, moto.endpoint, AWS_DEFAULT_REGION="eu-west-1")

    assert shown.count("|click ") == 20  # rows that `show` shows, whichever came first
    assert shown.count("|CLICK ") == 20
