"""Tables of Spark's catalog: which properties are passed on, and which statements the errors advise."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import BinaryType, StructField, StructType

from sluice.errors import OptionError
from sluice.kinesis.source import SCHEMA
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark.source import KinesisDataSource

COLUMNS = SCHEMA.replace(" timestamp,", " timestamp_ltz,")
# What Spark passes on at CREATE TABLE, besides what the statement has.
TABLE = {"provider": "kinesis-efo", "owner": "root"}
WITH = r"SELECT \.\.\. FROM <table> WITH \(streamName = '\.\.\.', \.\.\.\)"


def source(**given: str) -> DataSource:
    return KinesisDataSource(CaseInsensitiveDict(given))


def test_a_table_without_options_can_be_created() -> None:
    """It has the columns of the source; statements that read it give the options."""
    assert source(**TABLE).schema() == COLUMNS
    assert source(**TABLE, comment="clicks", location="file:/x", path="file:/x").schema() == COLUMNS
    assert source(**TABLE, team="a property of their own").schema() == COLUMNS


@pytest.mark.parametrize("given", ["option.streamname", "streamname", "initialposition", "option.any"])
def test_a_table_with_options_is_refused_with_what_to_write(given: str) -> None:
    """It could not be read: Spark passes on neither OPTIONS nor TBLPROPERTIES."""
    with pytest.raises(
        OptionError, match=f"does not pass on options .* {WITH}; or write CREATE TEMPORARY VIEW"
    ):
        source(**TABLE, **{given: "clicks"}).schema()


def test_a_table_that_is_read_without_options_says_what_to_write() -> None:
    """A batch and a stream; Spark asks for no columns before."""
    for read in (source().reader, source().streamReader):
        with pytest.raises(
            OptionError, match=f"'streamName' or 'streamArn' is required: .* by Spark: write {WITH}"
        ):
            read(StructType())


def test_a_table_that_is_written_without_options_says_what_to_write() -> None:
    """A batch and a stream."""
    sink = AsyncSinkDataSource(CaseInsensitiveDict({}))
    columns = StructType([StructField("data", BinaryType())])
    for write in (sink.writer, sink.streamWriter):
        with pytest.raises(
            OptionError, match=r"'destination' is required: .* by Spark: write INSERT INTO <table> WITH"
        ):
            write(columns, overwrite=False)


def test_a_sink_cannot_be_read() -> None:
    """A view of a sink would be one to read; a table to write to has its columns in the statement."""
    with pytest.raises(OptionError, match=r"async-sink: there is nothing to read: write with df\.write"):
        AsyncSinkDataSource(CaseInsensitiveDict({"destination": "kinesis"})).schema()


def test_a_source_cannot_be_written() -> None:
    """Spark's own words for it, "writer is not implemented", do not say what else to write with."""
    for write in (source(streamName="a").writer, source(streamName="a").streamWriter):
        with pytest.raises(OptionError, match="kinesis-efo: there is nothing to write to: write with"):
            write(StructType(), overwrite=False)
