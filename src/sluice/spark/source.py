"""The format ``kinesis-efo``.

Spark imports this module in every session to learn the name of the format. The SDK and Arrow take long to
import, so they are imported when a query uses the format.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sluice.errors import OptionError
from sluice.spark.border import shorten_traceback
from sluice.spark.catalog_tables import READ_TABLE, explain_if_of_table, is_create_table
from sluice.spark.logs import configure_driver_log

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

    @shorten_traceback
    def schema(self) -> str:
        """The columns. Called at ``load()``: registers consumers if ``consumerRegistration`` is ``eager``.

        Also called for ``CREATE TABLE``, if the statement does not list the columns.

        Raises:
            OptionError: the options cannot work.
            ServiceError: a consumer cannot be registered.
        """
        from sluice.kinesis.options import OPTION_KEYS  # noqa: PLC0415 - see above

        if is_create_table(self.name(), self.options, OPTION_KEYS):
            return SCHEMA
        config = self._config()
        if config.fan_out is not None:
            from sluice.kinesis.consumers import register_at_load  # noqa: PLC0415 - see above

            self._registered.update(register_at_load(config))
        return SCHEMA

    @shorten_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """Called for ``spark.read``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import BatchReader  # noqa: PLC0415 - see above

        config = self._config(streaming=False)
        _check_schema(schema)
        return BatchReader(config)

    @shorten_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Called for ``spark.readStream``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import make_stream_reader  # noqa: PLC0415 - see above

        config = self._config(streaming=True)
        _check_schema(schema)
        return make_stream_reader(config)

    def _config(self, *, streaming: bool | None = None) -> SourceConfig:
        from sluice.kinesis.options import source_config_from_options  # noqa: PLC0415 - see above

        configure_driver_log()
        try:
            config = source_config_from_options(dict(self.options), streaming=streaming)
        except OptionError as error:
            if streaming is None:  # at load(), which no table comes by
                raise
            raise explain_if_of_table(error, self.options, READ_TABLE) from None
        if config.fan_out is None or not self._registered:
            return config
        return replace(config, fan_out=replace(config.fan_out, registered=dict(self._registered)))


def _check_schema(schema: StructType) -> None:
    given = [f"{field.name} {field.dataType.simpleString()}" for field in schema.fields]
    if given != SCHEMA.replace("long", "bigint").split(", "):
        raise OptionError(f"kinesis-efo: the schema can't be chosen; it is always: {SCHEMA}")
