"""Makes Kinesis records from rows: columns ``data``, ``partitionKey`` and ``explicitHashKey``."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.destinations.common.columns import (
    ROWS_AT_A_TIME,
    Column,
    binary_values,
    check_columns,
    column_of,
    first_row,
    invalid_row,
    python_values,
    required_column,
)
from sluice.destinations.common.compression import compressed, restored
from sluice.sink import ElementConverter, Origin, StructType

__all__ = ["MAX_KEY_LENGTH", "KinesisEntry", "KinesisRowConverter", "RowColumns", "random_keys"]

_NAME: Final = "kinesis"
_DATA: Final = Column("data", ("binary", "string"), required=True)
_PARTITION_KEY: Final = Column("partitionKey", ("string",))
_HASH_KEY: Final = Column("explicitHashKey", ("string",))

MAX_KEY_LENGTH: Final = 256
"""Characters that a partition key may have. Code points here, as the service may count either these or UTF-16
units: no key is refused that it might take."""

_LARGEST_HASH_KEY: Final = str(2**128 - 1)
_RANDOM_KEY_BYTES: Final = 8  # 16 characters: short, because a record's size counts its key


class KinesisEntry(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True, gc=False):
    """A record to write. Encodes to JSON as the API wants it.

    The partition key selects the shard unless there is an explicit hash key.
    """

    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None

    def restored(self, compression: str) -> KinesisEntry:
        """The record as it was before it was compressed."""
        return msgspec.structs.replace(self, data=restored(self.data, compression))

    def _asdict(self) -> dict[str, Any]:
        """The fields, as a named tuple gives them: dead letters need them."""
        return msgspec.structs.asdict(self)


class RowColumns(NamedTuple):
    """The values of some rows, by column. None stands for a missing column, or for a column of nulls."""

    data: list[bytes]
    partition_keys: list[str | None] | None
    hash_keys: list[str | None] | None


class KinesisRowConverter(ElementConverter[KinesisEntry]):
    """Makes records from rows. Columns with other names are not written.

    Rows of the source can be written without a ``select``: its other columns say where a record was read, and
    a stream makes them anew.

    Args:
        compression: of the data.
    """

    data_column = _DATA.name
    known_columns = (_DATA.name, _PARTITION_KEY.name, _HASH_KEY.name)
    ignored_columns = (
        "sequenceNumber",
        "subSequenceNumber",
        "approximateArrivalTimestamp",
        "streamName",
        "shardId",
    )

    def __init__(self, compression: str = "none") -> None:
        self._compression = compression

    def open(self, schema: StructType, origin: Origin | None = None) -> None:  # noqa: ARG002
        """Checks the columns.

        Raises:
            OptionError: column ``data`` is missing, or a column has the wrong type.
        """
        check_columns(_NAME, [_DATA, _PARTITION_KEY, _HASH_KEY], schema)

    def convert(self, batch: pa.RecordBatch) -> Iterator[KinesisEntry]:
        """The records of a batch, made lazily.

        Raises:
            InvalidRecordError: in a row, ``data`` is null or a key is not allowed.
            OptionError: the batch has no column ``data``.
        """
        for columns in self.columns(batch):
            yield from _entries(columns)

    def columns(self, batch: pa.RecordBatch) -> Iterator[RowColumns]:
        """The checked values of a batch, up to 1,024 rows at a time. Raises as `convert` does."""
        data = required_column(_NAME, _DATA, batch)
        keys = column_of(batch, _PARTITION_KEY.name)
        hash_keys = column_of(batch, _HASH_KEY.name)
        for start in range(0, batch.num_rows, ROWS_AT_A_TIME):
            values = binary_values(_NAME, _DATA, data.slice(start, ROWS_AT_A_TIME), start)
            yield RowColumns(
                compressed(values, self._compression),
                None if keys is None else _partition_keys(keys.slice(start, ROWS_AT_A_TIME), start),
                None if hash_keys is None else _hash_keys(hash_keys.slice(start, ROWS_AT_A_TIME), start),
            )


def _entries(columns: RowColumns) -> Iterator[KinesisEntry]:
    data, keys, hash_keys = columns
    filled = _with_random_keys(keys, len(data))
    if hash_keys is None:
        return map(KinesisEntry, data, filled)
    return map(KinesisEntry, data, filled, hash_keys)


def _partition_keys(array: Any, start: int) -> list[str | None] | None:
    if array.null_count == len(array):
        return None
    lengths = pc.utf8_length(array)
    wrong = pc.or_kleene(pc.equal(lengths, 0), pc.greater(lengths, MAX_KEY_LENGTH))
    if pc.any(wrong).as_py():
        row = first_row(wrong)
        raise invalid_row(
            _NAME,
            start + row,
            f"column 'partitionKey' has {lengths[row].as_py()} characters: allowed are 1 to "
            f"{MAX_KEY_LENGTH}, or null for a random key. sha2(partitionKey, 256) shortens long keys",
        )
    return python_values(_NAME, _PARTITION_KEY.name, array, start)


def _with_random_keys(keys: list[str | None] | None, count: int) -> list[str]:
    if keys is None:
        return random_keys(count)
    missing = keys.count(None)
    if not missing:
        return cast("list[str]", keys)
    random = iter(random_keys(missing))
    return [next(random) if key is None else key for key in keys]


def random_keys(count: int) -> list[str]:
    """`count` different partition keys."""
    digits = secrets.token_hex(_RANDOM_KEY_BYTES * count)
    width = 2 * _RANDOM_KEY_BYTES
    return [digits[n : n + width] for n in range(0, width * count, width)]


def _hash_keys(array: Any, start: int) -> list[str | None] | None:
    if array.null_count == len(array):
        return None
    keys: list[str | None] = python_values(_NAME, _HASH_KEY.name, array, start)
    for key in dict.fromkeys(keys):
        if key is not None and not _is_hash_key(key):
            raise invalid_row(
                _NAME,
                start + first_row(pc.equal(array, key)),
                f"column 'explicitHashKey' ({len(key)} characters) is not a decimal number from 0 to 2^128-1",
            )
    return keys


def _is_hash_key(key: str) -> bool:
    if not (key.isascii() and key.isdigit()) or (len(key) > 1 and key[0] == "0"):
        return False
    # Numbers with equally many digits compare like text.
    return len(key) < len(_LARGEST_HASH_KEY) or (
        len(key) == len(_LARGEST_HASH_KEY) and key <= _LARGEST_HASH_KEY
    )
