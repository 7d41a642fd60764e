"""The README's first screen works as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.spark import JVM_OPTIONS

FIRST_SCREEN = 2  # blocks: the source, the sink


def test_the_first_screen_works_as_printed(streams: Streams, tmp_path: Path) -> None:
    """The two examples, one after the other in a fresh Python, copy a stream as they say.

    All that differs from print is where the service is, which the environment says, and where the
    checkpoint lies.
    """
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = "\n".join(examples[:FIRST_SCREEN])
    source, target = re.findall(r'"streamName", "([^"]+)"', program)
    regions = set(re.findall(r'"region", "([^"]+)"', program))
    checkpoint = re.findall(r'"checkpointLocation", "([^"]+)"', program)[0]
    there = Streams(streams.endpoint, region=regions.pop())
    there.create(2, name=source)
    there.create(1, name=target)
    there.put(source, [(f"user-{number}", b"click %d" % number) for number in range(100)])

    done = subprocess.run(
        (sys.executable, "-c", program.replace(checkpoint, str(tmp_path / "checkpoint"))),
        cwd=tmp_path,
        env={
            **os.environ,
            "AWS_ENDPOINT_URL_KINESIS": streams.endpoint,
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={tmp_path} {os.environ[JVM_OPTIONS]}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert not regions
    assert sorted((record.partition_key, record.data) for record in there.read(target)) == sorted(
        (f"user-{number}", b"CLICK %d" % number) for number in range(100)
    )
