"""The README's first screen, and the quickstart, work as printed."""

from __future__ import annotations

import re
from pathlib import Path

from integration.support.kinesis import Streams
from integration.support.pages import check_quickstart, printed, quickstart, run
from integration.support.servers import Server

FIRST_SCREEN = 2  # blocks: the source, the sink


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
    shown = run(quickstart(tmp_path), tmp_path, moto.endpoint, AWS_DEFAULT_REGION="eu-west-1")

    check_quickstart(shown)
