"""File formats: Parquet, and JSON lines as Spark writes them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from datetime import timezone
from functools import partial
from typing import IO, Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.destinations.common.columns import ROWS_AT_A_TIME, python_values
from sluice.errors import OptionError
from sluice.sink.contracts import StructType

__all__ = ["FORMATS", "FileFormat", "RowFile", "check_types"]

# Spark types without other types inside, by name or by the beginning of it.
_SIMPLE_TYPES: Final = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz"),
)
_SIMPLE_PREFIXES: Final = ("decimal(", "char(", "varchar(", "string collate ")


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
        for found in [_unsupported(field.dataType, json=file_format == "jsonl")]
        if found
    ]
    if problems:
        allowed = "numbers, strings, binary, boolean, dates, timestamps; arrays, structs and maps of them"
        keys = " (maps by string)" if file_format == "jsonl" else ""
        raise OptionError(
            f"destination 's3', format {file_format}, takes {allowed}{keys}: " + "; ".join(problems)
        )


def _unsupported(data_type: Any, *, json: bool) -> str | None:
    """The first type in `data_type`, including itself, that cannot be written; None if there is none."""
    inner = [
        getattr(data_type, name)
        for name in ("elementType", "keyType", "valueType")
        if hasattr(data_type, name)
    ]
    inner += [field.dataType for field in getattr(data_type, "fields", ())]
    name = str(data_type.simpleString())
    if not inner:
        return None if name in _SIMPLE_TYPES or name.startswith(_SIMPLE_PREFIXES) else name
    if json and hasattr(data_type, "keyType") and not data_type.keyType.simpleString().startswith("string"):
        return name
    return next((found for each in inner if (found := _unsupported(each, json=json))), None)


# --- Parquet ------------------------------------------------------------------------------------------


class ParquetFile:
    """Each `write` makes one row group."""

    def __init__(self, stream: IO[bytes], schema: pa.Schema, compression: str) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(stream, schema, compression=compression)

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        self._writer.close()


# --- JSON lines ---------------------------------------------------------------------------------------


class JsonLinesFile:
    """One line for each row. Nulls are left out, as by Spark."""

    def __init__(self, stream: IO[bytes], schema: pa.Schema, compression: str) -> None:
        self._stream = stream
        self._converters = [_converter(field.type) for field in schema]
        self._names = schema.names
        self._encoder = msgspec.json.Encoder(decimal_format="number")
        self._gzip = zlib.compressobj(wbits=31) if compression == "gzip" else None

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
                lines = self._encoder.encode_lines(self._rows(batch.slice(start, ROWS_AT_A_TIME), start))
                self._stream.write(lines if self._gzip is None else self._gzip.compress(lines))

    def close(self) -> None:
        if self._gzip is not None:
            self._stream.write(self._gzip.flush())

    def _rows(self, batch: pa.RecordBatch, start: int) -> list[dict[str, Any]]:
        columns = []
        for name, column, convert in zip(self._names, batch.columns, self._converters, strict=True):
            values = python_values("s3", name, column, start)
            columns.append(values if convert is None else [v if v is None else convert(v) for v in values])
        return [
            {name: value for name, value in zip(self._names, row, strict=True) if value is not None}
            for row in zip(*columns, strict=True)
        ]


_Convert = Callable[[Any], Any]


def _converter(arrow: pa.DataType) -> _Convert | None:
    """A function that makes a value of an Arrow type fit for JSON; None if all its values are."""
    types = pa.types
    if types.is_floating(arrow):
        return _number
    if types.is_timestamp(arrow) and arrow.tz is not None:
        return lambda value: value.astimezone(timezone.utc)
    if types.is_list(arrow) or types.is_large_list(arrow):
        item = _converter(arrow.value_type)
        return partial(_list, item) if item else None
    if types.is_map(arrow):
        return partial(_map, _converter(arrow.item_type))
    if types.is_struct(arrow):
        fields = {field.name: convert for field in arrow if (convert := _converter(field.type))}
        return partial(_struct, fields) if fields else None
    return None


def _list(item: _Convert, values: list[Any]) -> list[Any]:
    return [value if value is None else item(value) for value in values]


def _map(item: _Convert | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value if value is None or item is None else item(value) for key, value in pairs}


def _struct(fields: dict[str, _Convert], value: dict[str, Any]) -> dict[str, Any]:
    return {k: fields[k](v) if v is not None and k in fields else v for k, v in value.items()}


def _number(value: float) -> float | str:
    """NaN and the infinities as the strings that Spark writes and reads."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


FORMATS: Final[dict[str, FileFormat]] = {
    "parquet": FileFormat(
        ParquetFile,
        {"snappy": "snappy.parquet", "zstd": "zstd.parquet", "gzip": "gz.parquet", "none": "parquet"},
        "application/vnd.apache.parquet",
    ),
    "jsonl": FileFormat(JsonLinesFile, {"none": "jsonl", "gzip": "jsonl.gz"}, "application/x-ndjson"),
}
