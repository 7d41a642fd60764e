"""The command ``sluice`` on checkpoints that this Spark writes, and Spark on checkpoints that it changed."""

from __future__ import annotations

import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import SparkSession

from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import read_stream, start
from integration.support.s3 import Lake
from integration.support.servers import Server
from integration.test_recorded_checkpoints import RECORDINGS
from sluice.cli.app import main
from sluice.instants import iso_instant

NOW = {"availableNow": True}


def sluice(*arguments: object) -> Any:
    """The object that a command prints; raises for one that ends with a problem."""
    out = io.StringIO()
    code = main([*map(str, arguments), "--json"], out=out)
    value = json.loads(out.getvalue())
    assert code == 0, value
    return value


def options(endpoint: str) -> list[str]:
    return [f"--option=endpointUrl={endpoint}", f"--option=region={REGION}"]


def words(rows: list[Any]) -> list[str]:
    return sorted(bytes(row.data).decode() for row in rows)


def put(streams: ModelStreams, stream: str, word: str, count: int = 20) -> list[str]:
    records = [f"{word} {number}" for number in range(count)]
    streams.put(stream, [(f"key-{number}", each.encode()) for number, each in enumerate(records)])
    return sorted(records)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_reset_query_resumes_at_the_time(
    spark: SparkSession, service: ModelStreams, tmp_path: Path, *, is_committed: bool
) -> None:
    """The next batch has a new id and holds the records from the time on, whether or not the last batch was
    committed.
    """
    stream, checkpoint = service.create(2), tmp_path / "checkpoint"
    frame = read_stream(spark, service.endpoint, stream)
    put(service, stream, "early")
    start(frame, str(checkpoint), **NOW)
    service.clock.advance(seconds=30)
    instant = iso_instant(int(service.clock.now() * 1e6))
    service.clock.advance(seconds=30)
    late = put(service, stream, "late")
    assert words(start(frame, str(checkpoint), **NOW).rows) == late
    last = max(int(file.name) for file in (checkpoint / "offsets").glob("[0-9]*"))
    assert last > 0
    if not is_committed:
        (checkpoint / "commits" / str(last)).unlink()
    assert sluice("offsets", "show", checkpoint)["batch"]["id"] == last

    done = sluice(
        *("offsets", "reset", checkpoint, "--to-timestamp", instant, "--execute", "--force"),
        *options(service.endpoint),
    )
    later = put(service, stream, "later")
    again = start(frame, str(checkpoint), **NOW)

    assert done["givesUpBatch"] is not is_committed
    assert min(again.batches) == done["nextBatch"] == last + 1
    assert words(again.rows) == sorted(late + later)
    shown = sluice("offsets", "show", checkpoint, "--live", *options(service.endpoint))
    shards = shown["sources"][0]["streams"][stream]["shards"]
    assert [(each["basis"], each["millisBehind"]) for each in shards.values()] == [("service", 0)] * 2


@pytest.mark.parametrize("damaged", ["offsets", "commits"])
def test_a_damaged_file_that_keeps_spark_from_starting(
    spark: SparkSession, service: ModelStreams, tmp_path: Path, damaged: str
) -> None:
    """The file before the last one in `offsets`, or the last one in `commits`: a reset mends either."""
    stream, checkpoint = service.create(2), tmp_path / "checkpoint"
    frame = read_stream(spark, service.endpoint, stream)
    expected = [*put(service, stream, "one")]
    start(frame, str(checkpoint), **NOW)
    late = put(service, stream, "two")
    last = max(start(frame, str(checkpoint), **NOW).batches)
    file = checkpoint / damaged / str(last - 1 if damaged == "offsets" else last)
    crc = file.with_name(f".{file.name}.crc")
    file.write_bytes(b"")
    crc.unlink()
    with pytest.raises(StreamingQueryException):
        start(frame, str(checkpoint), **NOW)
    if damaged == "commits":
        copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
        (copy / damaged / file.name).unlink()
        again = start(frame, str(copy), **NOW)
        assert (min(again.batches), words(again.rows)) == (last, late)

    sluice(
        *("offsets", "reset", checkpoint, "--to-trim-horizon", "--execute", "--force"),
        *options(service.endpoint),
    )
    assert words(start(frame, str(checkpoint), **NOW).rows) == sorted(expected + late)


def test_a_checkpoint_in_s3(moto: Server) -> None:
    """Read, changed and put back as a local one: with credentials and endpoint from options."""
    lake = Lake(moto.endpoint)
    recorded = RECORDINGS / "polling" / "checkpoint"
    for file in recorded.rglob("*"):
        if file.is_file():
            key = f"checkpoints/polling/{file.relative_to(recorded).as_posix()}"
            lake.client.put_object(Bucket=lake.bucket, Key=key, Body=file.read_bytes())
    url = f"s3://{lake.bucket}/checkpoints/polling"
    local, there = (
        sluice("offsets", "show", recorded),
        sluice("offsets", "show", url, *options(moto.endpoint)),
    )
    same = ("queryId", "batch", "isStateful")
    assert {key: there[key] for key in same} == {key: local[key] for key in same}
    before = {key: lake.get(key) for key in lake.listed()}

    reset = ("offsets", "reset", url, "--to-trim-horizon", "--offline", "--execute", "--force")
    done = sluice(*reset, *options(moto.endpoint))

    shards = sluice("offsets", "show", url, *options(moto.endpoint))["sources"][0]["streams"]
    positions = [each["position"]["at"] for stream in shards.values() for each in stream["shards"].values()]
    assert positions == ["TRIM_HORIZON"] * 2
    undo = ("offsets", "reset", url, "--undo", done["backup"], "--execute", "--force")
    sluice(*undo, *options(moto.endpoint))
    after = {key: lake.get(key) for key in lake.listed() if "_sluice_backup" not in key}
    # When a file is deleted, pyarrow leaves the empty object that represents its directory.
    assert {key: body for key, body in after.items() if not key.endswith("/")} == before


def test_files_of_a_sink(spark: SparkSession, moto: Server) -> None:
    """What Spark has written to destination s3 is listed as the helper lists it, and removed on request."""
    lake = Lake(moto.endpoint)
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS data")
    frame.write.format("async-sink").options(**lake.options(fileFormat="jsonl")).mode("append").save()

    listed = sluice("files", "list", lake.path, *options(moto.endpoint))
    assert listed["files"] == [f"s3://{lake.bucket}/{key}" for key in lake.files()]
    assert [(each["rows"], each["batch"]) for each in listed["batches"]] == [(10, 0)]

    early = sluice("files", "expire", lake.path, "--before", "2020-01-01", *options(moto.endpoint))
    assert (early["batches"], early["executed"]) == ([], False)
    done = sluice(
        *("files", "expire", lake.path, "--before", str(int(time.time()) + 3600), "--execute"),
        *options(moto.endpoint),
    )
    assert done["deletedFiles"] == len(listed["files"])
    assert lake.files() == []
    lake.check_nothing_else()
