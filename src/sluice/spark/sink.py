"""The format ``async-sink`` as Spark knows it.

Spark imports this module only to learn the name. The SDK and Arrow, which take long to import, are imported
when a query asks for a writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sluice.spark.border import shorten_traceback

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

__all__ = ["AsyncSinkDataSource"]


class AsyncSinkDataSource(DataSource):
    """``df.writeStream.format("async-sink")`` and ``df.write.format("async-sink").mode("append")``."""

    @classmethod
    def name(cls) -> str:
        return "async-sink"

    @shorten_traceback
    def streamWriter(  # noqa: N802 - Spark's name, and Spark passes both arguments by name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Raises OptionError for options, columns or an output mode that cannot work."""
        from sluice.spark.sink_writer import StreamSinkWriter  # noqa: PLC0415 - see above

        return StreamSinkWriter(self.options, schema, overwrite=overwrite)

    @shorten_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises OptionError for options, columns or a save mode that cannot work."""
        from sluice.spark.sink_writer import BatchSinkWriter  # noqa: PLC0415 - see above

        return BatchSinkWriter(self.options, schema, overwrite=overwrite)
