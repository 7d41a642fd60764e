"""The format ``kinesis-efo`` as Spark knows it.

Spark imports this to learn the name alone, so what is heavy (the SDK, Arrow) is imported when a query
asks for a reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sluice.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["SCHEMA", "KinesisDataSource"]

SCHEMA = (
    "data binary, partitionKey string, sequenceNumber string, subSequenceNumber long, "
    "approximateArrivalTimestamp timestamp, streamName string, shardId string"
)


class KinesisDataSource(DataSource):
    """``spark.readStream.format("kinesis-efo")`` and ``spark.read.format("kinesis-efo")``."""

    @classmethod
    def name(cls) -> str:
        return "kinesis-efo"

    def schema(self) -> str:
        """Raises OptionError, at ``load()``, for options that cannot work."""
        from sluice.kinesis.options import source_config_from_options  # noqa: PLC0415 - see above

        source_config_from_options(dict(self.options))
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises OptionError for options or a schema that cannot work."""
        from sluice.kinesis.options import source_config_from_options  # noqa: PLC0415 - see above
        from sluice.spark.source_reader import BatchReader  # noqa: PLC0415

        _check_schema(schema)
        return BatchReader(source_config_from_options(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Raises OptionError for options or a schema that cannot work."""
        from sluice.kinesis.options import source_config_from_options  # noqa: PLC0415 - see above
        from sluice.spark.source_reader import make_stream_reader  # noqa: PLC0415

        _check_schema(schema)
        return make_stream_reader(source_config_from_options(dict(self.options), streaming=True))


def _check_schema(schema: StructType) -> None:
    given = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
    if given != SCHEMA.replace("long", "bigint").split(", "):
        raise OptionError(f"kinesis-efo: the schema can't be chosen; it is always: {SCHEMA}")
