"""Real Spark writes files to two S3 servers; committed files are read back, and no others exist."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from integration.support import servers
from integration.support.directory import Directory
from integration.support.paths import ROOT
from integration.support.s3 import Lake
from integration.support.servers import Server

COUNT = 1500
FILES = 3

TYPES = (
    "id BIGINT, tiny TINYINT, small SMALLINT, number INT, real FLOAT, double DOUBLE, price DECIMAL(20,4), "
    "text STRING, data BINARY, flag BOOLEAN, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "list ARRAY<DOUBLE>, map MAP<STRING,TIMESTAMP>, nested STRUCT<a: STRING, b: ARRAY<DECIMAL(5,2)>>"
)


@pytest.fixture(scope="session")
def second_s3() -> Iterator[Server]:
    """An S3 that is not moto's."""
    with servers.ministack("s3") as server:
        yield server


@pytest.fixture(params=["moto", "ministack"])
def lake(request: pytest.FixtureRequest, moto: Server, second_s3: Server) -> Lake:
    return Lake((moto if request.param == "moto" else second_s3).endpoint)


def write(frame: DataFrame, lake: Lake, **options: str) -> None:
    frame.write.format("async-sink").mode("append").options(**lake.options(**options)).save()


def write_stream(
    frame: DataFrame, lake: Lake | Directory, directory: Path, *, files: int = FILES, **options: str
) -> dict[str, Any]:
    """Adds the rows to a stream as `files` files, an epoch each, and runs it to its end."""
    source, checkpoint = directory / "rows", directory / "checkpoint"
    frame.repartition(files).write.mode("append").parquet(str(source))
    query = (
        frame.sparkSession.readStream.schema(frame.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .writeStream.format("async-sink")
        .options(**lake.options(**options))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"id": query.id, "runId": query.runId}


def every_type(spark: SparkSession) -> DataFrame:
    """Rows with values of every type that files take, extreme ones and nulls."""
    return (
        spark.range(100)
        .selectExpr(
            "id",
            "CAST(id AS TINYINT) tiny",
            "CAST(-id AS SMALLINT) small",
            "IF(id % 7 = 0, NULL, CAST(id * 1000000 AS INT)) number",
            "CAST(id / 3 AS FLOAT) real",
            "CASE id WHEN 0 THEN double('NaN') WHEN 1 THEN double('Infinity') "
            "WHEN 2 THEN double('-Infinity') ELSE id / 7 END double",
            "CAST(id AS DECIMAL(20,4)) / 3 price",
            "CASE WHEN id % 5 = 0 THEN NULL ELSE concat('grün \"', id, '\\n') END text",
            "CAST(concat('x', id) AS BINARY) data",
            "id % 2 = 0 flag",
            "date_add(DATE'1960-01-01', CAST(id * 300 AS INT)) day",
            "timestamp_micros(1763719200123456 + id * 999999937) at",
            "TIMESTAMP_NTZ'2026-11-21 10:00:00.123456' + make_dt_interval(CAST(id AS INT)) local",
            "array(id / 3, NULL, double('NaN')) list",
            "map('k', timestamp_micros(id), 'n', NULL) map",
            "named_struct('a', IF(id % 3 = 0, NULL, 's'), 'b', array(CAST(id AS DECIMAL(5,2)))) nested",
        )
        .selectExpr(*(f"CAST({name} AS {kind}) {name}" for name, kind in columns()))
    )


def columns() -> list[tuple[str, str]]:
    parts = [part.strip().split(" ", 1) for part in TYPES.replace("ARRAY<DECIMAL(5,2)>>", "@").split(", ")]
    merged: list[list[str]] = []
    for part in parts:
        if (merged and (merged[-1][1].count("<") > merged[-1][1].count(">"))) or len(part) == 1:
            merged[-1][1] += ", " + " ".join(part)
        else:
            merged.append(part)
    return [(name, kind.replace("@", "ARRAY<DECIMAL(5,2)>>")) for name, kind in merged]


@pytest.mark.parametrize(
    ("file_format", "compression"), [("parquet", "zstd"), ("jsonl", "none"), ("jsonl", "gzip")]
)
def test_every_type_in_a_batch_write(
    spark: SparkSession, lake: Lake, tmp_path: Path, file_format: str, compression: str
) -> None:
    """Read back with the same schema by Spark itself: the same rows."""
    frame = every_type(spark)
    write(frame, lake, fileFormat=file_format, compression=compression)

    found = lake.read(spark, tmp_path, TYPES)
    assert sorted(map(str, found.collect())) == sorted(map(str, frame.collect()))
    lake.check_nothing_else()
    (manifest,) = lake.manifests()
    assert manifest["rows"] == 100


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_a_stream_in_partitions(spark: SparkSession, lake: Lake, tmp_path: Path, file_format: str) -> None:
    """Hive-style directories that Spark reads back as columns, over several epochs and a second run."""
    names = "'DE', 'a/b=c%d', 'grün', '', NULL, '{x}[y]*?', 'two words'"
    tricky = f"element_at(array({names}), CAST(id % 7 AS INT) + 1)"
    frame = spark.range(COUNT).selectExpr("id", f"{tricky} AS Land", "DATE'2026-11-21' day", "'t' text")
    more = frame.selectExpr(f"id + {COUNT} AS id", "Land", "day", "text")
    options: Any = {"fileFormat": file_format, "partitionBy": "land, day"}

    query = write_stream(frame, lake, tmp_path, **options)
    again = write_stream(more, lake, tmp_path, **options)
    assert query["id"] == again["id"]

    found = lake.read(spark, tmp_path, "id BIGINT, text STRING, Land STRING, day DATE")
    # Hive has one name for null and for the empty string.
    wanted = frame.union(more).selectExpr("id", "text", "nullif(Land, '') Land", "day")
    assert sorted(map(str, found.collect())) == sorted(map(str, wanted.collect()))
    lake.check_nothing_else()
    manifests = lake.manifests()
    assert [each["batch"] for each in manifests] == list(range(2 * FILES))
    assert {each["query"] for each in manifests} == {str(query["id"])}
    assert {each["run"] for each in manifests} == {str(query["runId"]), str(again["runId"])}
    assert any("Land=a%2Fb%3Dc%25d/day=2026-11-21/" in key for key in lake.listed())


def test_directories_are_spelt_as_spark_spells_them(spark: SparkSession) -> None:
    """Every character that there is an opinion about, in Spark's own words."""
    from sluice.destinations.files.layout import hive_escaped  # noqa: PLC0415

    utils: Any = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils  # type: ignore[union-attr]
    for text in [*(chr(code) for code in range(1, 256)), "a/b=c%d é ☃"]:
        assert hive_escaped(text) == utils.escapePathName(text)


def failing_once(number: int) -> int:
    """Fails the first attempt of a task, after most of its rows."""
    context = TaskContext.get()
    if number % 500 == 499 and context is not None and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return number


def test_tasks_that_are_tried_again(
    make_spark: Callable[..., SparkSession], lake: Lake, tmp_path: Path
) -> None:
    """What the attempts that failed had uploaded is neither counted nor left behind."""
    spark = make_spark(master="local[2,4]")
    failing = f.udf(failing_once, "bigint", useArrow=False)
    frame = spark.range(COUNT).select(failing("id").alias("id"))
    write(frame, lake)
    source = tmp_path / "rows"
    spark.range(COUNT).write.parquet(str(source))
    query = (
        spark.readStream.schema("id BIGINT")
        .parquet(str(source))
        .select(failing("id").alias("id"))
        .writeStream.format("async-sink")
        .options(**lake.options(fileFormat="parquet"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    found = [row.id for row in lake.read(spark, tmp_path, "id BIGINT").collect()]
    assert sorted(found) == sorted([*range(COUNT), *range(COUNT)])
    lake.check_nothing_else()


def test_a_query_that_fails_leaves_nothing_and_resumes(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """A task fails for good (Spark passes None for it): what its neighbours uploaded is aborted; the next run
    commits the batch once.
    """
    source, checkpoint = tmp_path / "rows", str(tmp_path / "checkpoint")
    spark.range(COUNT).repartition(4).write.parquet(str(source))

    def run(condition: str) -> Any:
        query = (
            spark.readStream.schema("id BIGINT")
            .parquet(str(source))
            .repartition(4)
            .selectExpr(f"IF({condition}, raise_error('a bad row'), id) AS id")
            .selectExpr("CAST(id AS BIGINT) id")
            .writeStream.format("async-sink")
            .options(**lake.options())
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    with pytest.raises(Exception, match="a bad row"):
        run("id = 777")
    assert lake.files() == []
    assert [key for key in lake.listed() if "/_sluice/" not in key] == []
    run("id < 0")

    assert sorted(row.id for row in lake.read(spark, tmp_path, "id BIGINT").collect()) == list(range(COUNT))
    lake.check_nothing_else()
    (manifest,) = lake.manifests()
    assert manifest["batch"] == 0


LARGE = """
import json, os, resource, sys
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from sluice.destinations import read_sink
from sluice.retry import patient
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

schema = StructType([StructField("id", LongType()), StructField("data", BinaryType())])
destination = read_sink(json.loads(sys.argv[1])).destination
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def batch(number):
    data = [os.urandom(1024) for _ in range(4096)]
    ids = pa.array(range(number * 4096, number * 4096 + 4096))
    return pa.RecordBatch.from_pydict({"id": ids, "data": data})

def task(name, batches):
    writer = destination.create_writer(schema, Origin("s3", run=name))
    for number in range(batches):
        writer.write(batch(number))
    uploads = writer.prepare_commit()
    EpochCommit(destination, Epoch(None, name, None), backoff=patient(60.0)).commit(uploads)
    writer.close()
    return len(uploads), writer.bytes, peak()

print(json.dumps([task("small", 25), task("large", 100)]))
"""


@pytest.mark.parametrize(("name", "file_format"), [("moto", "parquet"), ("ministack", "jsonl")])
def test_memory_does_not_grow_with_the_rows(
    moto: Server, second_s3: Server, name: str, file_format: str
) -> None:
    """400 MiB of one task, in files of 128 MiB, take hardly more memory than 100 MiB do."""
    lake = Lake((moto if name == "moto" else second_s3).endpoint)
    options = lake.options(fileFormat=file_format, maxFileSize="128MiB")
    done = subprocess.run(
        (sys.executable, "-c", LARGE, json.dumps(options)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (_, few, before), (files, many, after) = json.loads(done.stdout)
    print(f"\n{file_format}: {few >> 20} MiB in {before} MiB of memory, {many >> 20} MiB in {after} MiB")

    assert files >= 4
    assert many > 3 * few
    assert after < before + 48
    lake.check_nothing_else()


def test_new_rows_under_ids_of_an_older_checkpoint_fail_the_query(
    spark: SparkSession, moto: Server, tmp_path: Path
) -> None:
    """The newest files of the checkpoint are deleted, so Spark plans other batches under their ids."""
    lake = Lake(moto.endpoint)
    for start in (0, 10, 20):
        write_stream(spark.range(start, start + 10), lake, tmp_path, files=1)
    for directory in ("offsets", "commits", "sources/0"):
        for file in (tmp_path / "checkpoint" / directory).iterdir():
            if file.name.lstrip(".").startswith("2"):
                file.unlink()

    with pytest.raises(Exception, match=r"batch 2 of query .* was committed before, with other contents"):
        write_stream(spark.range(30, 40), lake, tmp_path, files=1)

    assert ids(lake, spark, tmp_path) == list(range(30))


def test_a_repeated_version_of_foreach_batch_is_written_once(
    spark: SparkSession, moto: Server, tmp_path: Path
) -> None:
    """The driver fails after the write, and Spark repeats the batch."""
    lake = Lake(moto.endpoint)
    spark.range(10).repartition(1).write.json(str(tmp_path / "rows"))
    failures = ["after the write"]

    def write_batch(batch: DataFrame, number: int) -> None:
        write(batch, lake, txnAppId="orders to the lake", txnVersion=str(number))
        if failures:
            raise RuntimeError(failures.pop())

    stream = spark.readStream.schema("id BIGINT").json(str(tmp_path / "rows"))
    writer = stream.writeStream.foreachBatch(write_batch).option(
        "checkpointLocation", str(tmp_path / "check")
    )
    with pytest.raises(Exception, match="after the write"):
        writer.trigger(availableNow=True).start().awaitTermination()
    writer.trigger(availableNow=True).start().awaitTermination()

    assert not failures
    assert ids(lake, spark, tmp_path) == list(range(10))
    lake.check_nothing_else()


def ids(lake: Lake, spark: SparkSession, directory: Path) -> list[int]:
    return sorted(row.id for row in lake.read(spark, directory, "id BIGINT").collect())
