"""Both formats with Spark Connect, as docs/recipes.md shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.support.kinesis import REGION, Streams
from integration.support.paths import ROOT
from integration.support.queries import WAIT, wait_until

RECORDS = [("ada", b"one"), ("bob", b"two")]


@pytest.fixture(scope="module")
def target(streams: Streams) -> str:
    return streams.create(1)


@pytest.fixture(scope="module")
def clicks(streams: Streams) -> str:
    stream = streams.create(1)
    streams.put(stream, RECORDS)
    return stream


@pytest.fixture(scope="module")
def seen(streams: Streams, clicks: str, target: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an application has seen."""
    directory: Path = tmp_path_factory.mktemp("connect")
    where = {"endpointUrl": streams.endpoint, "region": REGION}
    plan = {
        "directory": str(directory),
        "reading": {**where, "streamName": clicks, "startingPosition": "TRIM_HORIZON"},
        "writing": {**where, "destination": "kinesis", "streamName": target},
        "target": {"streamName": target},
        "consumer": {"consumerName": "connect"},
    }
    done = subprocess.run(
        (sys.executable, "-m", "integration.support.connect_driver", json.dumps(plan)),
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * WAIT,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_batches(seen: Any) -> None:
    """Spark finds the formats on the server, and registering them from the client changes nothing."""
    assert seen["session"] == "pyspark.sql.connect.session"
    assert (seen["found"], seen["registered"], seen["batch"]) == (len(RECORDS), len(RECORDS), True)


def test_functions(seen: Any) -> None:
    """The client sends them, in Python and for SQL."""
    assert seen["decompressed"] == ["packed", "packed"]


def test_streams(seen: Any, streams: Streams, target: str) -> None:
    """What the batch and the stream have written."""
    assert seen["stream"]
    written = sorted(record.data for record in streams.read(target))
    assert written == sorted(data.upper() for _, data in RECORDS) + sorted(data for _, data in RECORDS)


def test_the_consumer_goes_when_the_query_is_stopped(seen: Any, streams: Streams, clicks: str) -> None:
    """It would be billed."""
    assert seen["stream"]
    arn = streams.client.describe_stream_summary(StreamName=clicks)["StreamDescriptionSummary"]["StreamARN"]
    wait_until(
        lambda: not streams.client.list_stream_consumers(StreamARN=arn)["Consumers"], "no consumer is left"
    )


def test_errors(seen: Any) -> None:
    """They come through to the client with their sentence."""
    option, column, stream = seen["errors"]
    assert (
        "kinesis-efo: option 'minPartitions' is Kafka's: the records of a shard are read in order" in option
    )
    assert "column 'data' (binary or string) is required" in column
    assert "DescribeStreamSummary of no-such-stream" in stream
    assert "ResourceNotFoundException" in stream
