"""Schemas of rows: equal names, columns that would not be written, and schemas without PySpark."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice.sink.contracts import StructType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PlainField",
    "PlainSchema",
    "PlainType",
    "same_names",
    "schema_of_rows",
    "unknown_columns_problem",
]

# What Arrow calls otherwise than SQL does.
_NAMES: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "large_string": "string",
    "large_binary": "binary",
    "date32[day]": "date",
    "null": "void",
}


def same_names(schema: StructType, key: Callable[[str], str], path: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of columns, or of fields of one struct at any depth, whose names are the same; with their paths.

    Args:
        schema: of the rows.
        key: two names are the same if this makes the same of them.
        path: of the struct, with a dot at its end; empty for the rows.
    """
    seen: dict[str, str] = {}
    for field in schema.fields:
        name = f"{path}{field.name}"
        if key(field.name) in seen:
            yield seen[key(field.name)], name
        seen.setdefault(key(field.name), name)
        yield from _same_names_inside(field.dataType, key, f"{name}.")


def _same_names_inside(data_type: Any, key: Callable[[str], str], path: str) -> Iterator[tuple[str, str]]:
    if hasattr(data_type, "fields"):
        yield from same_names(data_type, key, path)
    for inner in ("elementType", "keyType", "valueType"):
        if hasattr(data_type, inner):
            yield from _same_names_inside(getattr(data_type, inner), key, path)


def unknown_columns_problem(
    schema: StructType, known: Sequence[str], ignored: Sequence[str] = ()
) -> str | None:
    """The problem with columns that would not be written; None if there is none.

    Args:
        schema: of the rows. Names of columns are compared without regard to case.
        known: the columns that are written.
        ignored: columns that are left out and are not a mistake.
    """
    names = [field.name for field in schema.fields]
    allowed = {name.lower() for name in (*known, *ignored)}
    unknown = [name for name in names if name.lower() not in allowed]
    if not unknown:
        return None
    given = {name.lower() for name in names}
    missing = [name for name in known if name.lower() not in given]
    problems = []
    for name in unknown:
        # A name that is there already is the likely one only if no missing name comes near.
        near = _nearest(name, missing) or _nearest(name, known)
        problems.append(
            f"column '{name}' would not be written" + (f": did you mean '{near}'?" if near else "")
        )
    listed = f"{', '.join(known[:-1])} and {known[-1]}" if len(known) > 1 else "".join(known)
    return (
        f"{'; '.join(problems)} (written columns: {listed}; "
        "set 'unknownColumns' to ignore to leave others out)"
    )


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The name in `known` that is most like `name`, or None if none is like it."""
    by_key = {_key(each): each for each in known}
    near = difflib.get_close_matches(_key(name), by_key, n=1, cutoff=0.6)
    return by_key[near[0]] if near else None


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@dataclass(frozen=True)
class PlainType:
    """A type, as SQL spells it."""

    name: str

    def simpleString(self) -> str:  # noqa: N802 - PySpark's name
        """The name."""
        return self.name


@dataclass(frozen=True)
class PlainField:
    """A column; its type is a `PlainType`, or PySpark's."""

    name: str
    dataType: Any  # noqa: N815 - PySpark's name


@dataclass(frozen=True)
class PlainSchema:
    """The columns, in their order: what `StructType` asks for, where there is none of PySpark's."""

    fields: Sequence[Any]


def schema_of_rows(schema: pa.Schema) -> StructType:
    """PySpark's schema for an Arrow schema; one of names and types alone where PySpark has none.

    That is the case without PySpark, as for the command ``sluice``, and for types that Spark lacks.
    """
    try:
        # It takes a second, and only a writer without Spark needs it.
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        made: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except Exception:  # noqa: BLE001 - see above; the errors differ between versions of PySpark
        return PlainSchema([PlainField(each.name, PlainType(_name_of(each.type))) for each in schema])
    return made


def _name_of(kind: Any) -> str:
    """A type as SQL spells it, as far as SQL has it."""
    import pyarrow as pa  # noqa: PLC0415 - see tests/test_imports.py

    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_name_of(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_name_of(kind.key_type)},{_name_of(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{each.name}:{_name_of(each.type)}' for each in kind)}>"
    return _NAMES.get(str(kind), str(kind))
