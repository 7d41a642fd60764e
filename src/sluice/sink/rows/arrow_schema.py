"""The schema of Arrow rows, for a converter that nobody has opened with that of the query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sluice.sink.contracts import StructType
from sluice.sink.rows.plain_schema import PlainField, PlainSchema, PlainType

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["schema_of_rows"]

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


def schema_of_rows(schema: pa.Schema) -> StructType:
    """PySpark's schema for an Arrow schema; one of names and types alone where PySpark has none.

    So it is where there is no PySpark, as beside the command ``sluice``, and for types that Spark lacks.
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
