"""Destination ``files`` on a directory: killed at every call, and read by those who know nothing of it."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from integration.support import s3_process
from integration.support.directory import Directory
from integration.support.drivers import TIMEOUT, Driver, started_drivers
from integration.support.s3_driver import S3DriverPlan
from integration.test_s3 import TYPES, every_type, write_stream
from integration.test_s3_kills import EPOCH_ROWS, ROWS, SEED, Source, committed

HIVE = {
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoopRDD.ignoreEmptySplits": "false",  # those of symlinks say that they have no bytes
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
}


def logged(directory: Path) -> int:
    """How many epochs Spark has logged as committed."""
    return len(list((directory / "checkpoint" / "commits").glob("[0-9]*")))


def more_than(directory: Path, epochs: int) -> bool:
    return logged(directory) > epochs


def check(place: Directory, publish: str, logged: int, rows: int) -> None:
    """What each reader finds now: all that was logged, and at most one epoch more; by manifests as a whole.

    `logged`: epochs that Spark knows to be committed; `rows`: of an epoch.
    """
    least, most = Counter(range(logged * rows)), Counter(range((logged + 1) * rows))
    assert committed(place) in (least, most)
    reads = {"symlink": [place.by_symlinks], "visible": [place.by_pyarrow, place.by_duckdb]}
    for read in reads.get(publish, []):
        found = read()
        assert least <= found <= most, read.__name__


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.soak(seconds=90))])
@pytest.mark.parametrize(
    ("publish", "file_format"), [("manifest", "jsonl"), ("symlink", "parquet"), ("visible", "parquet")]
)
def test_killed_before_every_call(tmp_path: Path, publish: str, file_format: str, *, kills: int) -> None:
    """A process without Spark, killed before a call of the file system that changes something: one call
    further each time, through all that an epoch does, and then at any of them.
    """
    place = Directory(tmp_path / "events")
    log = tmp_path / "log"
    log.mkdir()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["integration.support.s3_process", "sluice.destinations.files"])
    options = place.options(fileFormat=file_format, partitionBy="part", publish=publish)
    chosen = random.Random(SEED)
    for number in range(1, kills + 2):
        last_call = number if number <= 40 else chosen.randint(1, 80)
        batches = len(list(log.iterdir())) + 6  # more calls than the last one that is chosen
        arguments = (options, str(log), f"run-{number}", batches, last_call if number <= kills else 0)
        process = processes.Process(target=s3_process.run, args=arguments)
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode == (-signal.SIGKILL if number <= kills else 0), last_call
        check(place, publish, len(list(log.iterdir())), EPOCH_ROWS)

    everything = Counter(range(batches * EPOCH_ROWS))
    assert committed(place) == place.by_pyarrow() == place.by_duckdb() == everything
    assert place.by_symlinks() == (everything if publish == "symlink" else Counter())
    place.check_nothing_else()
    print(f"\n{publish}, {file_format}: {kills} kills, {batches} batches, each row once")


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.soak(seconds=150))])
def test_a_killed_driver_shows_every_row_once(tmp_path: Path, kills: int) -> None:
    """A driver with Spark, killed at any time: a listing shows all epochs but the last one as a whole."""
    place = Directory(tmp_path / "events")
    chosen = random.Random(SEED)
    plan = S3DriverPlan(0, str(tmp_path), place.options(partitionBy="part", publish="visible"))
    plan.source.mkdir()
    source = Source(plan.source)
    attempts = itertools.count()
    with started_drivers() as drivers:

        def start() -> Driver:
            driver = Driver(replace(plan, attempt=next(attempts)), "integration.support.s3_driver")
            drivers.append(driver)
            return driver

        def go(driver: Driver) -> None:
            driver.wait_for("ready")
            assert driver.process.stdin is not None
            driver.process.stdin.write(b"go\n")
            driver.process.stdin.flush()

        following = start()
        for _ in range(kills):
            driver, following = following, start()
            for _ in range(4):
                source.add()
            seen = logged(tmp_path)
            go(driver)
            driver.wait_until(partial(more_than, tmp_path, seen), "an epoch is committed")
            time.sleep(chosen.uniform(0.0, 0.6))
            driver.kill()
            check(place, "visible", logged(tmp_path), ROWS)
        source.add()
        go(following)
        following.wait_for("done")
        following.end()

    assert committed(place) == place.by_pyarrow() == Counter(range(source.files * ROWS))
    place.check_nothing_else()


@pytest.mark.parametrize("file_format", ["parquet", "jsonl"])
def test_spark_reads_the_directory(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    """With every type, by its own listing and as partitions; from a URL, too."""
    place = Directory(tmp_path / "events")
    frame = every_type(spark)
    for path in (place.path, f"file://{place.path}"):
        options = place.options(fileFormat=file_format, publish="visible", partitionBy="flag")
        options["path"] = path
        frame.write.format("async-sink").mode("append").options(**options).save()

    reader = spark.read.schema(TYPES)
    found = reader.parquet(place.path) if file_format == "parquet" else reader.json(place.path)
    found = found.select(frame.columns)
    assert sorted(map(str, found.collect())) == sorted(map(str, frame.union(frame).collect()))
    place.check_nothing_else()


def test_hive_reads_symlink_manifests(make_spark: Callable[..., SparkSession], tmp_path: Path) -> None:
    """`SymlinkTextInputFormat`, over two runs of a query, and after old epochs are removed. Hive's own reads
    lines; Athena and Trino have readers of theirs for Parquet.
    """
    from sluice.cli.app import main  # noqa: PLC0415 - the others need none

    spark = make_spark(HIVE)
    place = Directory(tmp_path / "events")
    names = "element_at(array('DE', 'a/b=c%d', 'two words', NULL), CAST(id % 4 AS INT) + 1) AS land"
    frame = spark.range(300).selectExpr("id", names)
    more = spark.range(300, 600).selectExpr("id", names)
    options: Any = {"partitionBy": "land", "publish": "symlink", "fileFormat": "jsonl"}
    write_stream(frame, place, tmp_path, **options)
    write_stream(more, place, tmp_path, **options)
    (place.root / "part-of-no-epoch.jsonl").write_text('{"id": -1}\n')
    spark.sql(
        f"""CREATE EXTERNAL TABLE events (line STRING) PARTITIONED BY (land STRING)
        STORED AS INPUTFORMAT 'org.apache.hadoop.hive.ql.io.SymlinkTextInputFormat'
        OUTPUTFORMAT 'org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat'
        LOCATION 'file://{place.path}/_symlink_format_manifest'"""
    )
    spark.sql("MSCK REPAIR TABLE events")

    rows = spark.sql("SELECT get_json_object(line, '$.id'), land FROM events").collect()
    found = [(int(row[0]), row[1]) for row in rows]
    sent = [(row["id"], row["land"] or "__HIVE_DEFAULT_PARTITION__") for row in frame.union(more).collect()]
    assert sorted(found) == sorted(sent)

    assert main(["files", "expire", place.path, "--before", "2100-01-01", "--execute"]) == 0
    spark.sql("REFRESH TABLE events")
    assert spark.sql("SELECT line FROM events").count() == 0
    assert place.files() == []


def test_complete_days_have_a_marker(make_spark: Callable[..., SparkSession], tmp_path: Path) -> None:
    """Of a stream, a batch a file, whose days are those of the session's time zone. The hook runs on the
    driver, and markers are data for no reader.
    """
    spark = make_spark({"spark.sql.session.timeZone": "America/New_York"})
    place = Directory(tmp_path / "events")
    source, schema = tmp_path / "rows", "id LONG, at TIMESTAMP"
    source.mkdir()
    options = place.options(
        publish="visible",
        partitionBy="day",
        watermarkColumn="at",
        watermarkDelay="1h",
        partitionTimeZone="America/New_York",
        successFile="_SUCCESS",
        partitionHook="integration.support.partition_hook:record",
    )
    frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    # Hours of 22 November 2026 in UTC: the day ends at five o'clock there, and is complete an hour later.
    for number, (hour, days) in enumerate([(4, []), (5, []), (6, ["2026-11-21"]), (7, ["2026-11-21"])]):
        rows = f"SELECT {number}L AS id, timestamp '2026-11-22 {hour:02}:00:00Z' AS at"
        spark.sql(rows).write.mode("append").parquet(str(source))
        query = (
            frame.withColumn("day", functions.to_date("at"))
            .writeStream.format("async-sink")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        marked = sorted(each.parent.name for each in place.root.rglob("_SUCCESS"))
        assert marked == [f"day={day}" for day in days], hour

    told = (tmp_path / "told").read_text()
    assert told == f"file://{place.path}/day=2026-11-21/ {{'day': '2026-11-21'}}\n"
    everything = Counter(range(4))
    assert committed(place) == place.by_pyarrow() == place.by_duckdb() == everything
    assert Counter(row["id"] for row in spark.read.parquet(place.path).collect()) == everything
