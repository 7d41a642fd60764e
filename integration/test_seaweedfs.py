"""Destination `s3` on a server that others keep their data in; `make foreign` kills it and others."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from integration.foreign.files import S3
from integration.foreign.rows import awkward
from integration.support import servers

ROWS = 400
FILES = 3


def test_awkward_rows_are_committed_once(spark: SparkSession, tmp_path: Path) -> None:
    """Epoch by epoch, with partitions that are hard to name; a query that is restarted adds what is new."""
    with servers.seaweedfs() as server:
        place = S3(server.endpoint, tmp_path)
        options = servers.when_ready(place.prepare)
        for run in range(2):
            numbers = spark.range(run * ROWS, (run + 1) * ROWS).withColumnRenamed("id", "value")
            numbers.repartition(FILES).write.mode("append").parquet(str(tmp_path / "source"))
            numbers = (
                spark.readStream.schema("value BIGINT")
                .option("maxFilesPerTrigger", 1)
                .parquet(str(tmp_path / "source"))
            )
            query = (
                place.shape(awkward(numbers).repartition(2))
                .writeStream.format("async-sink")
                .options(**options)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            found = sorted(place.read(), key=lambda row: int(row["id"]))
            assert found == [place.expected(number) for number in range((run + 1) * ROWS)]
        place.lake.check_nothing_else()
