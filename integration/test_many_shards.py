"""A query of more shards than version 1 of its offsets is for, on real Spark."""

from __future__ import annotations

import io
import json

import pytest
from pyspark.sql import SparkSession

from integration.support.model_streams import ModelStreams
from integration.support.queries import logged_offsets, read_stream, start
from sluice.cli.app import main
from sluice.metrics import read_progress
from sluice.source import Offsets

SHARDS = 256  # as many as version 1 has
NOW = {"availableNow": True}


def put(service: ModelStreams, stream: str, word: str) -> set[str]:
    """To every shard with some luck."""
    records = [f"{word} {number}" for number in range(400)]
    service.put(stream, [(f"key-{word}-{number}", each.encode()) for number, each in enumerate(records)])
    return set(records)


@pytest.mark.usefixtures("publisher")
def test_a_split_takes_a_query_over_the_limit(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """The batch that begins in version 1 and ends in version 2 is exact, also when it runs again."""
    stream = service.create(SHARDS)
    frame = read_stream(spark, service.endpoint, stream, startingPosition="TRIM_HORIZON")
    expected = put(service, stream, "before")
    rows = list(start(frame, checkpoint, **NOW).rows)
    before = logged_offsets(checkpoint)
    assert {offset["version"] for offset in before.values()} == {1}

    service.split(stream, service.shards(stream)[0]["ShardId"])
    expected |= put(service, stream, "after")
    rows += start(frame, checkpoint, **NOW).rows
    logged = logged_offsets(checkpoint)
    assert [offset["version"] for number, offset in sorted(logged.items()) if number not in before][-1] == 2

    run = start(frame, checkpoint)
    expected |= put(service, stream, "later")
    run.wait_until(lambda: len(rows) + len(run.rows) >= len(expected), "all rows")
    progress = run.query.lastProgress
    rows += run.stop()
    assert sorted(bytes(row.data).decode() for row in rows) == sorted(expected)

    assert progress is not None
    (figures,) = read_progress(progress).streams
    assert len(figures.shards) == SHARDS + 1  # without the parent
    assert figures.max_millis_behind_latest is not None
    logged = logged_offsets(checkpoint)
    out = io.StringIO()
    assert main(["offsets", "show", checkpoint, "--json"], out=out) == 0
    shown = json.loads(out.getvalue())["sources"][0]["streams"][stream]["shards"]
    last = Offsets.from_json(logged[max(logged)]).to_json(1)["streams"][stream]
    assert {shard: each["position"] for shard, each in shown.items()} == last
    assert len(json.dumps(logged[max(logged)])) < 60 * SHARDS
