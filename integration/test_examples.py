"""The scripts and the notebook of examples/ run as they are, and do what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from examples.__main__ import REGION, STREAMS, fill, names, run

from integration.support import servers
from integration.support.kinesis import Streams
from integration.support.spark import JVM_OPTIONS

CLICKS = 60
# Quick ones run with `make test`; all of them take a minute.
QUICK = ["read_a_stream", "own_destination", "iceberg"]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(
            [name for name in names() if name not in QUICK], id="others", marks=pytest.mark.soak(seconds=60)
        ),
    ],
)
def test_examples_run(chosen: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One after the other, in one application; no consumer is left registered."""
    with servers.ministack() as server:
        streams = Streams(server.endpoint, region=REGION)
        fill(streams, CLICKS)
        clicks = streams.read("clicks")
        options = f"-Djava.io.tmpdir={tmp_path} {os.environ[JVM_OPTIONS]}"

        assert run(chosen, server.endpoint, tmp_path, {"JDK_JAVA_OPTIONS": options}) == 0

        shown = capfd.readouterr().out
        arn = streams.client.describe_stream_summary(StreamName="clicks")["StreamDescriptionSummary"]
        consumers = streams.client.list_stream_consumers(StreamARN=arn["StreamARN"])["Consumers"]
        written = {name: [record.data for record in streams.read(name)] for name in STREAMS}
    assert shown.count("== ") == len(chosen)
    if "read_a_stream" in chosen:
        assert f"{CLICKS} records in stream clicks" in shown
        assert shown.count('"square"') == 12
        assert "12 rows in 1 snapshot" in shown
    else:
        assert sorted(written["clicks-upper"]) == sorted(click.data.upper() for click in clicks)
        assert sorted(written["totals"]) == [
            b'{"section":"%s","clicks":20}' % name for name in (b"books", b"garden", b"toys")
        ]
        assert [each["ConsumerStatus"] for each in consumers] in ([], ["DELETING"])
