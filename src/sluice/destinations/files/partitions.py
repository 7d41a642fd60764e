"""Splits rows by partition. Directories are named as by Spark and Hive: ``country=DE/day=2026-11-21/``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sluice.destinations.files.layout import hive_escaped
from sluice.errors import InvalidRecordError, OptionError
from sluice.instants import far_date
from sluice.sink import StructType

__all__ = ["NULL", "Partitioning"]

_IN_NO_LISTING: Final = re.compile("[\ufffe\uffff]")
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_TYPES: Final = "string, boolean, tinyint, smallint, int, bigint or date"
_TYPE: Final = re.compile(r"string( .*)?|(var)?char\(\d+\)|boolean|tinyint|smallint|int|bigint|date")


class Partitioning:
    """Splits rows by the values of some columns. These go into the directory's name, not into the file.

    Args:
        columns: their names in any case, outermost directory first; empty for no partitioning.
        schema: of the rows.

    Raises:
        OptionError: a column is missing, named twice or has a type that cannot be part of a name, or no
            column is left for the files.
    """

    def __init__(self, columns: Sequence[str], schema: StructType) -> None:
        names = [field.name for field in schema.fields]
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        problems: list[str] = []
        self._columns: list[str] = []
        for wanted in columns:
            name = next((name for name in names if name.lower() == wanted.lower()), None)
            if name is None:
                problems.append(f"column '{wanted}' does not exist")
            elif name in self._columns:
                problems.append(f"column '{name}' is named twice")
            else:
                self._columns.append(name)
                if _TYPE.fullmatch(types[name]) is None:
                    problems.append(f"column '{name}' is {types[name]}: allowed is {_TYPES}")
        if len(self._columns) == len(names):
            problems.append("no column is left for the files" if names else "the rows have no columns")
        if problems:
            raise OptionError("option 'partitionBy': " + "; ".join(problems))

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields the directory and the rows of each partition in a batch. Rows keep their order.

        A directory ends in a slash; without partitioning it is empty.

        Raises:
            InvalidRecordError: the value of a partition column cannot be part of a key.
        """
        if not batch.num_rows:
            return
        if not self._columns:
            yield "", batch
            return
        directories, codes = self._codes(batch)
        kept = [name for name in batch.schema.names if name not in self._columns]
        rows = pa.RecordBatch.from_arrays([batch.column(name) for name in kept], names=kept)
        order = pc.sort_indices(codes)  # stable
        runs = pc.run_end_encode(codes.take(order))
        if len(runs.values) > 1:
            rows = rows.take(order)
        start = 0
        for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield directories[code], rows.slice(start, end - start)
            start = end

    def _codes(self, batch: pa.RecordBatch) -> tuple[list[str], Any]:
        """The directories of a batch, each once, and for each row the index of its directory."""
        directories = [""]
        codes: Any = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
        for name in self._columns:
            labels, label_codes = _labels(name, batch.column(name))
            # Number only the pairs that occur, at most one per row, so that the product in the next iteration
            # cannot overflow 64 bits.
            pairs = pc.add(pc.multiply(codes, len(labels)), label_codes).dictionary_encode()
            directories = [
                directories[pair // len(labels)] + labels[pair % len(labels)]
                for pair in pairs.dictionary.to_pylist()
            ]
            codes = pairs.indices.cast(pa.int64())
        return directories, codes


def _labels(name: str, column: Any) -> tuple[list[str], Any]:
    """The directory names that a column makes, each once, and for each row the index of its name.

    Raises:
        InvalidRecordError: a string is not UTF-8, as keys must be, or has characters that XML has not.
    """
    encoded = column.dictionary_encode(null_encoding="encode")
    try:
        texts = _texts(encoded.dictionary)
    except UnicodeDecodeError:
        raise InvalidRecordError(
            f"option 'partitionBy': column '{name}' has a string that is not UTF-8"
        ) from None
    if any(text is not None and _IN_NO_LISTING.search(text) for text in texts):
        raise InvalidRecordError(
            f"option 'partitionBy': column '{name}' has a string with U+FFFE or U+FFFF, "
            "which S3 lists in no key"
        )
    label = hive_escaped(name)
    # The empty string has the name of null.
    labels = pa.array([f"{label}={hive_escaped(text) if text else NULL}/" for text in texts])
    unique = labels.dictionary_encode()
    return unique.dictionary.to_pylist(), unique.indices.take(encoded.indices).cast(pa.int64())


def _texts(values: Any) -> list[str | None]:
    """The values of a column as Spark and Hive write them; dates may be beyond the year 9999."""
    if pa.types.is_date(values.type):
        return [None if day is None else far_date(day) for day in values.cast(pa.int32()).to_pylist()]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts
