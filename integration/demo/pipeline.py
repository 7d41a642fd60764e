"""The pipeline: a Kinesis stream in, each click with what is known of it out, and totals by window.

The clicks come by fan-out, the totals by polling: both report the time from the put to the row.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from integration.demo.events import MARK, WINDOW_SECONDS
from integration.support.kinesis import REGION

CONSUMER = "demo-clicks"
LATENCY = "latency"  # the observation: how many clicks, and the median of their ms since they were sent
SCHEMA = "id string, user string, page string, action string, price long, at long, sent long"
WATERMARK = "10 seconds"
TRIGGERS = {"clicks": "100 milliseconds", "totals": "1 second"}


class Pipeline:
    """Two queries over one input stream, each with its own output stream."""

    def __init__(self, spark: SparkSession, endpoint: str, checkpoints: Path) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self._checkpoints = checkpoints

    def start(self, *, clicks: str, output: str, totals: str) -> list[StreamingQuery]:
        """Starts both; the arguments are names of streams."""
        pushed = self._read(clicks, recordPublisher="efo", consumerName=CONSUMER)
        polled = self._read(clicks, recordPublisher="polling")
        return [
            self._write(each_click(pushed), output, "clicks"),
            self._write(by_window(polled), totals, "totals"),
        ]

    def _read(self, stream: str, **publisher: str) -> DataFrame:
        source = (
            self._spark.readStream.format("kinesis-efo")
            .option("streamName", stream)
            .option("startingPosition", "TRIM_HORIZON")
            .option("region", REGION)
            .option("endpointUrl", self._endpoint)
            .options(**publisher)
            .load()
        )
        return with_section(timed(parsed(source)))

    def _write(self, rows: DataFrame, stream: str, name: str) -> StreamingQuery:
        return (
            rows.writeStream.format("async-sink")
            .option("destination", "kinesis")
            .option("streamName", stream)
            .option("region", REGION)
            .option("endpointUrl", self._endpoint)
            .option("checkpointLocation", str(self._checkpoints / name))
            .queryName(name)
            .trigger(processingTime=TRIGGERS[name])
            .start()
        )


def parsed(source: DataFrame) -> DataFrame:
    """The clicks in columns."""
    click = f.from_json(f.col("data").cast("string"), SCHEMA)
    return source.select(click.alias("click")).select("click.*")


def timed(clicks: DataFrame) -> DataFrame:
    """The same rows; how long each has taken to get here goes into the reports on the query's progress."""
    # Spark's own current_timestamp() is the same for a whole batch: when that was planned.
    now = f.reflect(f.lit("java.lang.System"), f.lit("currentTimeMillis")).cast("long")
    taken = f.when(f.col("action") != MARK, now - f.col("sent"))
    figures = f.count("taken").alias("rows"), f.percentile_approx("taken", 0.5).alias("p50")
    return clicks.withColumn("taken", taken).observe(LATENCY, *figures).drop("taken")


def with_section(clicks: DataFrame) -> DataFrame:
    """With the section of the shop and what was earned."""
    return clicks.withColumn("section", f.split("page", "/")[1]).withColumn(
        "revenue", f.when(f.col("action") == "buy", f.col("price")).otherwise(f.lit(0))
    )


def each_click(parsed: DataFrame) -> DataFrame:
    """As the sink takes it: ``data`` and ``partitionKey``."""
    clicks = parsed.where(f.col("action") != MARK)
    return clicks.select(f.to_json(f.struct("*")).alias("data"), f.col("user").alias("partitionKey"))


def by_window(parsed: DataFrame) -> DataFrame:
    """Clicks and revenue of each section in each window, once the watermark has passed it."""
    totals = (
        parsed.withColumn("time", f.timestamp_millis("at"))
        .withWatermark("time", WATERMARK)
        .groupBy(f.window("time", f"{WINDOW_SECONDS} seconds"), "section")
        .agg(f.count_if(f.col("action") != MARK).alias("clicks"), f.sum("revenue").alias("revenue"))
        # Not by the section: Spark would move that below the watermark, which would not see the marks.
        .where("clicks > 0")
        .select(f.unix_seconds("window.start").alias("start"), "section", "clicks", "revenue")
    )
    key = f.concat_ws("/", f.col("start").cast("string"), "section")
    return totals.select(f.to_json(f.struct("*")).alias("data"), key.alias("partitionKey"))
