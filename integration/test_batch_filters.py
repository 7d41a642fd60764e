"""Filters over batch reads: rows are right, whether Spark passes filters to Python readers or not.

No reader of Sluice takes them. Spark keeps one plan for all scans of a DataFrame, so a reader that leaves out
rows for one filter leaves them out for others, too. The last test fails once Spark does better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.kinesis import REGION, Streams
from integration.support.spark import SPARK_VERSION

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"])
def pushing(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    spark.conf.set(PUSHDOWN, request.param)
    yield spark
    spark.conf.unset(PUSHDOWN)


def words(frame: DataFrame) -> Counter[str]:
    return Counter(row[0] for row in frame.selectExpr("CAST(data AS STRING)").collect())


def test_a_frame_has_the_rows_of_each_filter(pushing: SparkSession, streams: Streams) -> None:
    """One after another, and two in one query."""
    one, two = streams.create(2), streams.create(2)
    streams.put(one, [("a", b"1"), ("b", b"2")])
    streams.put(two, [("a", b"3"), ("b", b"4")])
    frame = (
        pushing.read.format("kinesis-efo")
        .options(endpointUrl=streams.endpoint, region=REGION, streamName=f"{one},{two}")
        .option("startingPosition", "TRIM_HORIZON")
        .load()
    )
    of_one, of_two = (frame.filter(frame.streamName == name) for name in (one, two))
    late = frame.filter("approximateArrivalTimestamp > current_timestamp() + INTERVAL 1 HOUR")

    assert words(late) == Counter()
    assert words(of_one) == Counter("12")
    assert words(frame) == Counter("1234")
    assert words(of_one.union(of_two)) == Counter("1234")
    assert words(of_two.filter("shardId IS NOT NULL AND NOT shardId = ''")) == Counter("34")


@pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="Spark 4.0 passes no filters")
@pytest.mark.xfail(
    raises=AssertionError,
    reason="Spark 4.1 to 4.3 read both with the filter that was pushed last",
    strict=True,
)
def test_spark_keeps_the_filters_of_two_scans_apart(spark: SparkSession) -> None:
    """Once it does, `approximateArrivalTimestamp`, `streamName` and `shardId` may become ranges."""
    from pyspark.sql import datasource  # noqa: PLC0415 - 4.0 has no filters

    class Reader(datasource.DataSourceReader):
        wanted: tuple[str, ...] = ("a", "b")

        def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
            self.wanted = tuple(each.value for each in filters if isinstance(each, datasource.EqualTo))
            return filters

        def partitions(self) -> list[Any]:
            return [datasource.InputPartition(self.wanted)]

        def read(self, partition: Any) -> Any:
            return ((each,) for each in partition.value)

    class Letters(datasource.DataSource):
        @classmethod
        def name(cls) -> str:
            return "letters-of-a-filter"

        def schema(self) -> str:
            return "letter string"

        def reader(self, schema: Any) -> Any:
            del schema
            return Reader()

    spark.conf.set(PUSHDOWN, "true")
    try:
        spark.dataSource.register(Letters)
        frame = spark.read.format("letters-of-a-filter").load()
        both = frame.filter("letter = 'a'").union(frame.filter("letter = 'b'"))
        assert sorted(row.letter for row in both.collect()) == ["a", "b"]
    finally:
        spark.conf.unset(PUSHDOWN)
