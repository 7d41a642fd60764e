"""The format ``async-sink``.

Spark imports this module only to learn the name. The SDK and Arrow, which take long to import, are
imported when a query needs a writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from sluice.errors import OptionError
from sluice.spark.border import shorten_traceback
from sluice.spark.catalog_tables import WRITE_TABLE, explain_if_of_table

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
    def schema(self) -> str:
        """Raises OptionError: there is nothing to read. Writing does not call it."""
        raise self._unreadable()

    @shorten_traceback
    def reader(self, schema: StructType) -> NoReturn:
        """Called when a table with columns is read. Raises OptionError."""
        del schema
        raise self._unreadable()

    @shorten_traceback
    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        """As `reader`."""
        del schema
        raise self._unreadable()

    def _unreadable(self) -> OptionError:
        return OptionError(
            f"{self.name()}: there is nothing to read: write with df.write or df.writeStream, or CREATE "
            f"TABLE <table> (<columns>) USING `{self.name()}`, and then {WRITE_TABLE}"
        )

    @shorten_traceback
    def streamWriter(  # noqa: N802 - Spark's name, and Spark passes both arguments by name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Raises OptionError for options, columns or an output mode that cannot work."""
        from sluice.spark.sink_writer import StreamSinkWriter  # noqa: PLC0415 - see above

        try:
            return StreamSinkWriter(self.options, schema, overwrite=overwrite)
        except OptionError as error:
            raise explain_if_of_table(error, self.options, WRITE_TABLE) from error.__cause__

    @shorten_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Raises OptionError for options, columns or a save mode that cannot work."""
        from sluice.spark.sink_writer import BatchSinkWriter  # noqa: PLC0415 - see above

        try:
            return BatchSinkWriter(self.options, schema, overwrite=overwrite)
        except OptionError as error:
            raise explain_if_of_table(error, self.options, WRITE_TABLE) from error.__cause__
