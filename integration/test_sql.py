"""Both formats in SQL, as docs/recipes.md shows them: views, tables, streams and inserts."""
# ruff: noqa: S608 - what is put together here are names and options of the tests

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.support.kinesis import REGION, Streams
from integration.support.queries import wait_until
from integration.support.spark import SPARK_VERSION

RECORDS = [("ada", b"one"), ("ada", b"two"), ("bob", b"three")]
WORDS = sorted(data.decode() for _, data in RECORDS)

needs_stream_options = pytest.mark.skipif(SPARK_VERSION < (4, 1), reason="Spark 4.0 has no STREAM ... WITH")


@dataclass
class Place:
    """Two streams, with records in the first, and tables without options for both."""

    spark: SparkSession
    streams: Streams
    clicks: str
    target: str
    source: str
    sink: str  # source, sink: the names of the tables

    @property
    def reading(self) -> dict[str, str]:
        return {**self._where, "streamName": self.clicks, "startingPosition": "TRIM_HORIZON"}

    @property
    def writing(self) -> dict[str, str]:
        return {**self._where, "destination": "kinesis", "streamName": self.target}

    @property
    def _where(self) -> dict[str, str]:
        return {"endpointUrl": self.streams.endpoint, "region": REGION}

    def words(self, sql: str) -> list[str]:
        """The only column of a query."""
        return sorted(str(row[0]) for row in self.spark.sql(sql).collect())

    def written(self) -> list[str]:
        return sorted(record.data.decode() for record in self.streams.read(self.target))


@pytest.fixture
def place(spark: SparkSession, streams: Streams) -> Iterator[Place]:
    name = uuid.uuid4().hex[:8]
    place = Place(spark, streams, streams.create(1), streams.create(1), f"clicks_{name}", f"upper_{name}")
    streams.put(place.clicks, RECORDS)
    spark.sql(f"CREATE TABLE {place.source} USING `kinesis-efo`")
    spark.sql(f"CREATE TABLE {place.sink} (data STRING, partitionKey STRING) USING `async-sink`")
    yield place
    spark.sql(f"DROP TABLE {place.source}")
    spark.sql(f"DROP TABLE {place.sink}")


def clause(options: dict[str, str]) -> str:
    return ", ".join(f"{key} '{value}'" for key, value in options.items())


def test_a_temporary_view_has_its_options(place: Place) -> None:
    """It is read as often as one likes, also in a common table expression."""
    place.spark.sql(f"CREATE TEMPORARY VIEW v USING `kinesis-efo` OPTIONS ({clause(place.reading)})")
    try:
        assert place.words("SELECT string(data) FROM v") == WORDS
        counts = "WITH c AS (SELECT partitionKey, count(*) AS n FROM v GROUP BY 1) SELECT n FROM c"
        assert place.words(counts) == ["1", "2"]
    finally:
        place.spark.sql("DROP VIEW v")


def test_a_table_gets_its_options_where_it_is_read(place: Place) -> None:
    """Spark keeps what is stored with it to itself."""
    assert place.words(f"SELECT string(data) FROM {place.source} WITH ({clause(place.reading)})") == WORDS
    table = place.spark.read.options(**place.reading).table(place.source)
    assert table.count() == len(RECORDS)
    with pytest.raises(PySparkException) as failure:
        place.spark.table(place.source).collect()
    assert "'streamName' or 'streamArn' is required" in str(failure.value)
    assert "write SELECT ... FROM <table> WITH (streamName = '...', ...)" in str(failure.value)


def test_insert_into_a_table(place: Place) -> None:
    """With the options of the statement."""
    rows = f"SELECT upper(string(data)), partitionKey FROM {place.source} WITH ({clause(place.reading)})"
    place.spark.sql(f"INSERT INTO {place.sink} WITH ({clause(place.writing)}) {rows}")
    assert place.written() == [word.upper() for word in WORDS]
    with pytest.raises(PySparkException) as failure:
        place.spark.sql(f"INSERT INTO {place.sink} {rows}")
    assert "write INSERT INTO <table> WITH (destination = '...', ...)" in str(failure.value)


def test_write_to_a_table(place: Place) -> None:
    """``DataFrame.writeTo``, as tables of other catalogs are written."""
    frame = place.spark.createDataFrame([("one", "a")], "data string, partitionKey string")
    frame.writeTo(place.sink).options(**place.writing).append()
    assert place.written() == ["one"]


def stream_to_target(place: Place, sql: str, checkpoint: str) -> None:
    writer = place.spark.sql(sql).writeStream.format("async-sink").options(**place.writing)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    wait_until(lambda: not query.isActive, "the query to end")
    if (error := query.exception()) is not None:
        raise error


def test_sql_over_a_view_of_a_stream(place: Place, checkpoint: str) -> None:
    """What ``readStream`` has made is a view to SQL."""
    stream = place.spark.readStream.format("kinesis-efo").options(**place.reading).load()
    stream.createOrReplaceTempView("live")
    stream_to_target(place, "SELECT upper(string(data)) AS data FROM live", checkpoint)
    assert place.written() == [word.upper() for word in WORDS]


@needs_stream_options
def test_sql_over_a_table_as_a_stream(place: Place, checkpoint: str) -> None:
    """``STREAM`` makes a streaming query of it."""
    sql = f"SELECT string(data) AS data FROM STREAM {place.source} WITH ({clause(place.reading)})"
    stream_to_target(place, sql, checkpoint)
    assert place.written() == WORDS


def test_tables_as_streams(place: Place, checkpoint: str) -> None:
    """``readStream.table`` and ``toTable``."""
    stream = place.spark.readStream.options(**place.reading).table(place.source)
    writer = stream.selectExpr("string(data) AS data", "partitionKey").writeStream.options(**place.writing)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).toTable(place.sink)
    wait_until(lambda: not query.isActive, "the query to end")
    assert query.exception() is None
    assert place.written() == WORDS
