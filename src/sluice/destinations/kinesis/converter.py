"""Rows as records of Kinesis Data Streams: columns ``data``, ``partitionKey``, ``explicitHashKey``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import InvalidRecordError, OptionError
from sluice.sink.contracts import StructType

__all__ = ["Columns", "KinesisEntry", "KinesisRowConverter", "random_keys"]

_DATA: Final = "data"
_PARTITION_KEY: Final = "partitionKey"
_HASH_KEY: Final = "explicitHashKey"
# Column to the Spark types it may have, as SQL spells them; "string" includes collated strings.
_COLUMNS: Final = {_DATA: ("binary", "string"), _PARTITION_KEY: ("string",), _HASH_KEY: ("string",)}

_LONGEST_KEY: Final = 256  # Unicode characters
_LARGEST_HASH_KEY: Final = str(2**128 - 1)
_RANDOM_KEY_BYTES: Final = 8  # 16 characters: short, as keys count for the size of a record
# Rows turned into Python objects at a time, whatever the size of the batch they come in.
_SLICE: Final = 1024


class KinesisEntry(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True, gc=False):
    """A record to write, with its fields as they are on the wire.

    Without an explicit hash key its partition key decides about the shard.
    """

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None

    def _asdict(self) -> dict[str, Any]:
        """As of a named tuple: from this dead letters know the fields."""
        return msgspec.structs.asdict(self)


class Columns(NamedTuple):
    """Some rows, column by column. A column without any value is None."""

    data: list[bytes]
    partition_keys: list[str | None] | None
    hash_keys: list[str | None] | None


class KinesisRowConverter:
    """Makes records of rows.

    Column names are compared as Spark does, without regard to case. Other columns are not written, as
    with Spark's Kafka sink: rows of the source can go into the sink as they are.
    """

    def open(self, schema: StructType) -> None:
        """Checks the columns.

        Raises:
            OptionError: there is no column ``data``, or a column has the wrong type.
        """
        problems: list[str] = []
        seen: set[str] = set()
        by_key = {name.lower(): name for name in _COLUMNS}
        for field in schema.fields:
            column = by_key.get(field.name.lower())
            if column is None:
                continue
            if column in seen:
                problems.append(f"column '{column}' is there twice")
            seen.add(column)
            given = field.dataType.simpleString()
            if given.split(" ")[0] not in _COLUMNS[column]:
                problems.append(f"column '{column}' is {given}: allowed is {' or '.join(_COLUMNS[column])}")
        if _DATA not in seen:
            problems.insert(0, "column 'data' (binary or string) is required")
        if problems:
            raise OptionError(
                "destination 'kinesis' takes the columns data, partitionKey and explicitHashKey: "
                + "; ".join(problems)
            )

    def convert(self, batch: pa.RecordBatch) -> Iterator[KinesisEntry]:
        """The records of a batch, made slice by slice as they are asked for.

        Raises:
            InvalidRecordError: a row without data, or with a key that is not allowed.
            OptionError: the batch has no column ``data``.
        """
        return chain.from_iterable(map(_entries, self.columns(batch)))

    def columns(self, batch: pa.RecordBatch) -> Iterator[Columns]:
        """The columns of a batch, checked, slice by slice. Raises as `convert` does."""
        positions = {name.lower(): n for n, name in enumerate(batch.schema.names)}
        if _DATA not in positions:
            raise OptionError("destination 'kinesis': column 'data' (binary or string) is required")
        for start in range(0, batch.num_rows, _SLICE):
            rows = batch.slice(start, _SLICE)

            def column(name: str, rows: pa.RecordBatch = rows) -> Any:
                position = positions.get(name.lower())
                return None if position is None else rows.column(position)

            yield Columns(
                _data(column(_DATA), start),
                _partition_keys(column(_PARTITION_KEY), start),
                _hash_keys(column(_HASH_KEY), start),
            )


def _entries(columns: Columns) -> Iterator[KinesisEntry]:
    data, keys, hash_keys = columns
    filled = _with_random_keys(keys, len(data))
    if hash_keys is None:
        return map(KinesisEntry, data, filled)
    return map(KinesisEntry, data, filled, hash_keys)


def _data(column: Any, start: int) -> list[bytes]:
    if column.null_count:
        raise _invalid(start + _first(pc.is_null(column)), "column 'data' is null")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        wide = pa.types.is_large_string(column.type)
        column = column.cast(pa.large_binary() if wide else pa.binary())
    values: list[bytes] = column.to_pylist()
    return values


def _partition_keys(column: Any, start: int) -> list[str | None] | None:
    if column is None or column.null_count == len(column):
        return None
    lengths = pc.utf8_length(column)
    wrong = pc.or_kleene(pc.equal(lengths, 0), pc.greater(lengths, _LONGEST_KEY))
    if pc.any(wrong).as_py():
        row = _first(wrong)
        length = lengths[row].as_py()
        raise _invalid(
            start + row,
            f"column 'partitionKey' has {length} characters: allowed are 1 to {_LONGEST_KEY}, or null for "
            "a random key",
        )
    keys: list[str | None] = column.to_pylist()
    return keys


def _with_random_keys(keys: list[str | None] | None, count: int) -> list[str]:
    if keys is None:
        return random_keys(count)
    missing = keys.count(None)
    if not missing:
        return cast("list[str]", keys)
    random = iter(random_keys(missing))
    return [next(random) if key is None else key for key in keys]


def random_keys(count: int) -> list[str]:
    """So many partition keys, none like another."""
    digits = secrets.token_hex(_RANDOM_KEY_BYTES * count)
    width = 2 * _RANDOM_KEY_BYTES
    return [digits[n : n + width] for n in range(0, width * count, width)]


def _hash_keys(column: Any, start: int) -> list[str | None] | None:
    if column is None or column.null_count == len(column):
        return None
    for key in pc.unique(column).to_pylist():
        if key is not None and not _is_hash_key(key):
            row = _first(pc.equal(column, key))
            raise _invalid(
                start + row,
                f"column 'explicitHashKey' ({len(key)} characters) is not a decimal number from 0 to 2^128-1",
            )
    keys: list[str | None] = column.to_pylist()
    return keys


def _is_hash_key(key: str) -> bool:
    if not (key.isascii() and key.isdigit()) or (len(key) > 1 and key[0] == "0"):
        return False
    # Digits of equal length compare like the numbers they are.
    return len(key) < len(_LARGEST_HASH_KEY) or (
        len(key) == len(_LARGEST_HASH_KEY) and key <= _LARGEST_HASH_KEY
    )


def _first(mask: Any) -> int:
    return int(pc.index(pc.fill_null(mask, fill_value=False), value=True).as_py())


def _invalid(row: int, why: str) -> InvalidRecordError:
    return InvalidRecordError(f"destination 'kinesis': row {row} of a batch of rows (counted from 0): {why}")
