"""Functions of Spark's columns for what streams hold. They call no service, and keep nothing.

``sluice.register(spark)`` registers them for SQL as well, as ``sluice_decompress`` and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

import sluice.spark  # noqa: F401 - says which PySpark is needed
from sluice.functions.attribute_values import attribute_json, plain_json
from sluice.functions.columns import ERRORS, ColumnFunction
from sluice.functions.decompression import CODECS, decompressed
from sluice.functions.envelopes import log_events, split_header

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql._typing import ColumnOrName

__all__ = [
    "cloudwatch_logs",
    "decompress",
    "dynamodb_json",
    "register_functions",
    "schema_registry_header",
    "to_dynamodb_json",
]

_TEXT: Final = pa.string()
_EVENT: Final = {
    **dict.fromkeys(("owner", "logGroup", "logStream"), _TEXT),
    "subscriptionFilters": pa.list_(_TEXT),
    "id": _TEXT,
    "timestamp": pa.timestamp("us", "UTC"),
    "message": _TEXT,
}

_decompress: Final = ColumnFunction(
    "decompress", decompressed, "binary", pa.binary(), settings={"codec": CODECS, **ERRORS}
)
_cloudwatch_logs: Final = ColumnFunction(
    "cloudwatch_logs",
    log_events,
    "array<struct<owner: string, logGroup: string, logStream: string, subscriptionFilters: array<string>, "
    "id: string, timestamp: timestamp, message: string>>",
    pa.list_(pa.struct(list(_EVENT.items()))),
    takes_text=True,
)
_schema_registry_header: Final = ColumnFunction(
    "schema_registry_header",
    split_header,
    "struct<registry: string, schemaId: string, payload: binary>",
    pa.struct([("registry", _TEXT), ("schemaId", _TEXT), ("payload", pa.binary())]),
    settings={},
)
_dynamodb_json: Final = ColumnFunction("dynamodb_json", plain_json, "string", _TEXT, takes_text=True)
_to_dynamodb_json: Final = ColumnFunction(
    "to_dynamodb_json", attribute_json, "string", _TEXT, takes_text=True
)


def decompress(col: ColumnOrName, codec: str = "auto", errors: str = "fail") -> Column:
    """Decompresses binary values.

    Args:
        col: a binary column.
        codec: ``gzip``, ``zlib``, ``zstd`` (one or more frames), ``lz4`` (frames), ``snappy`` (framed or
            raw), ``brotli``; or ``auto``: by the first bytes. What begins like none of them is not changed:
            ``auto`` does not know brotli and raw Snappy, and leaves data alone that only looks like zlib.
        errors: ``fail``, or ``null`` for null where a value is damaged, truncated, of another codec, or
            decompresses to more than 1 GiB.

    Raises:
        OptionError: `codec` or `errors` is not one of these.
    """
    return _decompress(col, codec=codec, errors=errors)


def cloudwatch_logs(col: ColumnOrName, errors: str = "fail") -> Column:
    """The events in an envelope of CloudWatch Logs, as a subscription sends it to Kinesis or Firehose.

    Args:
        col: a column of envelopes, compressed or not.
        errors: ``fail``, or ``null`` for null where a value is not an envelope.

    Returns:
        A column of arrays of ``struct<owner, logGroup, logStream, subscriptionFilters, id, timestamp,
        message>``. A control message gives an empty array.

    Raises:
        OptionError: `errors` is not one of these.
    """
    return _cloudwatch_logs(col, errors=errors)


def schema_registry_header(col: ColumnOrName) -> Column:
    """The header of a schema registry's serializer, and the data behind it.

    Args:
        col: a binary column.

    Returns:
        A column of ``struct<registry, schemaId, payload>``: ``glue`` and a UUID, ``confluent`` and a number,
        or nulls if there is no header. The payload is decompressed; without a header it is all of the value.
    """
    return _schema_registry_header(col)


def dynamodb_json(col: ColumnOrName, errors: str = "fail") -> Column:
    """Plain JSON of DynamoDB's attribute values: ``{"id": {"N": "1"}}`` becomes ``{"id":1}``.

    Numbers keep all their digits, binary stays base64, sets become arrays. JSON's null gives null.

    Args:
        col: a column of JSON, string or binary: items, or single attribute values.
        errors: ``fail``, or ``null`` for null where a value is neither.

    Raises:
        OptionError: `errors` is not one of these.
    """
    return _dynamodb_json(col, errors=errors)


def to_dynamodb_json(col: ColumnOrName, errors: str = "fail") -> Column:
    """DynamoDB's attribute values of JSON documents: the other way of `dynamodb_json`.

    Strings become ``S``, numbers ``N`` with all their digits, booleans ``BOOL``, null ``NULL``, arrays ``L``
    and objects ``M``. An object at the top becomes an item.

    Args:
        col: a column of JSON, string or binary.
        errors: ``fail``, or ``null`` for null where a value is not JSON.

    Raises:
        OptionError: `errors` is not one of these.
    """
    return _to_dynamodb_json(col, errors=errors)


def register_functions(spark: SparkSession) -> None:
    """Registers the functions for SQL in a session, each with ``sluice_`` before its name."""
    for function in (
        _decompress,
        _cloudwatch_logs,
        _schema_registry_header,
        _dynamodb_json,
        _to_dynamodb_json,
    ):
        spark.udf.register(f"sluice_{function.name}", function.udf())
