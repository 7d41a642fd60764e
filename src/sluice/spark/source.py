"""The format ``kinesis-efo``.

Spark imports this module in every session to learn the name of the format. The SDK and Arrow take long to
import, so they are imported when a query uses the format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sluice.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from sluice.kinesis.options import SourceConfig

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

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # By stream, the ARN of a consumer that was registered at load(). Spark calls `schema` first; then it
        # pickles this object and lets the copy make the readers.
        self._registered: dict[str, str] = {}

    def schema(self) -> str:
        """The columns. Called at ``load()``: registers consumers if ``consumerRegistration`` is ``eager``.

        Raises:
            OptionError: the options cannot work.
            ServiceError: a consumer cannot be registered.
        """
        config = self._config()
        if config.fan_out is not None:
            from sluice.kinesis.consumers import register_at_load  # noqa: PLC0415 - see above

            self._registered.update(register_at_load(config))
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Called for ``spark.read``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import BatchReader  # noqa: PLC0415 - see above

        _check_schema(schema)
        return BatchReader(self._config())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Called for ``spark.readStream``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import make_stream_reader  # noqa: PLC0415 - see above

        _check_schema(schema)
        return make_stream_reader(self._config(streaming=True))

    def _config(self, *, streaming: bool = False) -> SourceConfig:
        from sluice.kinesis.options import source_config_from_options  # noqa: PLC0415 - see above

        config = source_config_from_options(dict(self.options), streaming=streaming)
        if config.fan_out is None or not self._registered:
            return config
        return replace(config, fan_out=replace(config.fan_out, registered=dict(self._registered)))


def _check_schema(schema: StructType) -> None:
    given = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
    if given != SCHEMA.replace("long", "bigint").split(", "):
        raise OptionError(f"kinesis-efo: the schema can't be chosen; it is always: {SCHEMA}")
