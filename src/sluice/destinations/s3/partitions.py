"""Splits rows by partition. Directories are named as by Spark and Hive: ``country=DE/day=2026-11-21/``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sluice.destinations.s3.layout import hive_escaped
from sluice.errors import OptionError
from sluice.sink.contracts import StructType

__all__ = ["Partitioning"]

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
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
                problems.append(f"there is no column '{wanted}'")
            elif name in self._columns:
                problems.append(f"column '{name}' is named twice")
            else:
                self._columns.append(name)
                if _TYPE.fullmatch(types[name]) is None:
                    problems.append(f"column '{name}' is {types[name]}: allowed is {_TYPES}")
        if len(self._columns) == len(names):
            problems.append("no column is left for the files" if names else "there is no column")
        if problems:
            raise OptionError("destination 's3', option 'partitionBy': " + "; ".join(problems))

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yields the directory and the rows of each partition in a batch. Rows keep their order.

        A directory ends in a slash; without partitioning it is empty.
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
            yield _directory(directories, code), rows.slice(start, end - start)
            start = end

    def _codes(self, batch: pa.RecordBatch) -> tuple[list[list[str]], Any]:
        """The directory names of each column, and for each row one number that selects a name of each."""
        directories: list[list[str]] = []
        codes: Any = None
        for name in self._columns:
            encoded = batch.column(name).cast(pa.string()).dictionary_encode(null_encoding="encode")
            label = hive_escaped(name)
            values = encoded.dictionary.to_pylist()
            directories.append([f"{label}={hive_escaped(value) if value else _NULL}/" for value in values])
            indices = encoded.indices.cast(pa.int64())
            codes = indices if codes is None else pc.add(pc.multiply(codes, len(values)), indices)
        return directories, codes


def _directory(directories: list[list[str]], code: int) -> str:
    parts = []
    for names in reversed(directories):
        code, position = divmod(code, len(names))
        parts.append(names[position])
    return "".join(reversed(parts))
