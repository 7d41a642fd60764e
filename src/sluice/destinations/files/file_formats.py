"""File formats: Parquet, and JSON lines as Spark writes them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.destinations.common.columns import ROWS_AT_A_TIME, python_values
from sluice.errors import OptionError
from sluice.sink import StructType
from sluice.sink.rows.json_rows import JsonRows, unsupported_type
from sluice.sink.rows.schema import same_names

__all__ = ["FORMATS", "FileFormat", "RowFile", "check_types"]


class RowFile(Protocol):
    """A file that is being written."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Appends rows, all with the same schema."""

    def close(self) -> None:
        """Ends the file. The stream below it stays open."""


class FileFormat(NamedTuple):
    """A file format.

    Attributes:
        open: begins a file on a stream, with a schema and a compression.
        extensions: the extension of file names for each compression. The first compression is the default.
        content_type: of the object.
    """

    open: Callable[[IO[bytes], pa.Schema, str], RowFile]
    extensions: dict[str, str]
    content_type: str


def check_types(file_format: str, schema: StructType) -> None:
    """Raises OptionError for columns that a file cannot hold, or that Spark would not read back unchanged."""
    problems = [
        f"column '{field.name}' is {found}"
        for field in schema.fields
        for found in [unsupported_type(field.dataType, text_keys=file_format == "jsonl")]
        if found
    ]
    alike = [f"'{first}' and '{second}'" for first, second in same_names(schema, key=str.lower)]
    if alike:
        raise OptionError(
            "Spark, which compares names of columns without regard to case, could not read "
            f"files with both of the columns {'; '.join(alike)}: rename one"
        )
    if problems:
        allowed = "numbers, strings, binary, boolean, dates, timestamps; arrays, structs and maps of them"
        keys = " (maps by string)" if file_format == "jsonl" else ""
        raise OptionError(f"files with format {file_format} take {allowed}{keys}: " + "; ".join(problems))


# --- Parquet ------------------------------------------------------------------------------------------


# Dates and times are of the proleptic Gregorian calendar. Without this Spark's readers go by
# spark.sql.parquet.datetimeRebaseModeInRead where a value is before 1582, and refuse or shift it
# (DataSourceUtils.datetimeRebaseSpec). The version is the oldest Spark whose rows come here.
_CALENDAR: Final = {b"org.apache.spark.version": b"4.0.0"}


class ParquetFile:
    """Each `write` makes one row group."""

    def __init__(self, stream: IO[bytes], schema: pa.Schema, compression: str) -> None:
        self._schema = schema.with_metadata({**(schema.metadata or {}), **_CALENDAR})
        self._writer = pq.ParquetWriter(stream, self._schema, compression=compression)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


# --- JSON lines ---------------------------------------------------------------------------------------


class JsonLinesFile:
    """One line for each row. Nulls are left out, as by Spark, also inside structs."""

    def __init__(self, stream: IO[bytes], schema: pa.Schema, compression: str) -> None:
        self._stream = stream
        self._rows = JsonRows(schema)
        self._encoder = msgspec.json.Encoder(decimal_format="number")
        self._gzip = zlib.compressobj(wbits=31) if compression == "gzip" else None

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
                rows = self._rows.of(batch.slice(start, ROWS_AT_A_TIME), partial(_values, start))
                lines = self._encoder.encode_lines(rows)
                self._stream.write(lines if self._gzip is None else self._gzip.compress(lines))

    def close(self) -> None:
        if self._gzip is not None:
            self._stream.write(self._gzip.flush())


def _values(start: int, name: str, column: Any) -> list[Any]:
    return python_values("files", name, column, start)


FORMATS: Final[dict[str, FileFormat]] = {
    "parquet": FileFormat(
        ParquetFile,
        {"snappy": "snappy.parquet", "zstd": "zstd.parquet", "gzip": "gz.parquet", "none": "parquet"},
        "application/vnd.apache.parquet",
    ),
    "jsonl": FileFormat(JsonLinesFile, {"none": "jsonl", "gzip": "jsonl.gz"}, "application/x-ndjson"),
}
