"""Rows as Avro data.

Types: https://avro.apache.org/docs/1.12.0/specification/#logical-types; Spark's own, of ``to_avro``:
https://spark.apache.org/docs/latest/sql-data-sources-avro.html#supported-types-for-spark-sql---avro-conversion
"""

from __future__ import annotations

import difflib
import io
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from sluice.errors import OptionError
from sluice.sink.contracts import StructType
from sluice.sink.nested_values import Change, change_of
from sluice.sink.utc import in_utc

__all__ = ["AvroRows", "avro_schema", "load_fastavro", "parse_schema"]

_RECORD: Final = "topLevelRecord"  # as Spark's to_avro calls it
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_SIMPLE: Final[dict[str, Any]] = {
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_TEXT: Final = ("char(", "varchar(", "string collate ")
# The types of a given schema that the library writes a point in time as, and those of them that mean the same
# as the column. With any other, what is written depends on the time zone of the session or of the host.
_TIMES: Final = re.compile("date|(local-)?timestamp-.*")
_SAME_TIMES: Final = {"timestamp": "timestamp-", "timestamp_ntz": "local-timestamp-"}


def load_fastavro() -> Any:
    """The library. Raises OptionError if it is not installed."""
    try:
        import fastavro  # noqa: PLC0415 - only who writes Avro needs it
        import fastavro.schema  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(
            f"Avro needs the package fastavro: pip install 'pyspark-sluice[avro]' ({error})"
        ) from None
    return fastavro


def parse_schema(schema: dict[str, Any]) -> Any:
    """A schema in the library's form. Raises OptionError if it is not one."""
    fastavro = load_fastavro()
    if "fields" not in schema:
        raise OptionError("it is not an Avro schema: a record has fields")
    try:
        return fastavro.parse_schema(schema)
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError, TypeError) as error:
        raise OptionError(f"it is not an Avro schema: {type(error).__name__}: {error}") from None


def avro_schema(schema: StructType) -> dict[str, Any]:
    """The Avro schema of rows, as that of Spark's ``to_avro``, but with decimals as bytes.

    Raises:
        OptionError: a column has a type or a name that Avro has no form for.
    """
    return _record(schema, _RECORD, "", set())


def _record(schema: Any, name: str, path: str, taken: set[str]) -> dict[str, Any]:
    name = _unique(name, taken)
    fields = []
    for field in schema.fields:
        where = f"{path}{field.name}"
        if _NAME.fullmatch(field.name) is None:
            raise OptionError(
                f"Avro has no form for a column called '{where}': names are letters, digits and _, and begin "
                "with no digit"
            )
        # Records are told apart by their names, so these have the whole path.
        kind = _type(field.dataType, f"{name}_{field.name}", where, taken)
        fields.append({"name": field.name, "type": _optional(kind, getattr(field, "nullable", True))})
    return {"type": "record", "name": name, "fields": fields}


def _unique(name: str, taken: set[str]) -> str:
    """`name`, with a number if it is taken: the record of ``a.b`` is called as that of ``a_b``."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


def _type(data_type: Any, name: str, path: str, taken: set[str]) -> Any:
    shown = str(data_type.simpleString())
    if shown in _SIMPLE:
        return _SIMPLE[shown]
    if shown.startswith(_TEXT):
        return "string"
    if match := _DECIMAL.fullmatch(shown):
        precision, scale = int(match[1]), int(match[2])
        if scale >= 0:
            return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    elif hasattr(data_type, "elementType"):
        items = _type(data_type.elementType, f"{name}_item", path, taken)
        return {"type": "array", "items": _optional(items, getattr(data_type, "containsNull", True))}
    elif hasattr(data_type, "valueType") and data_type.keyType.simpleString().startswith("string"):
        values = _type(data_type.valueType, f"{name}_value", path, taken)
        return {"type": "map", "values": _optional(values, getattr(data_type, "valueContainsNull", True))}
    elif hasattr(data_type, "fields"):
        return _record(data_type, name, f"{path}.", taken)
    raise OptionError(f"Avro has no form for column '{path}', which is {shown}")


def _optional(kind: Any, nullable: bool) -> Any:
    return [kind, "null"] if nullable else kind


def _plain(kind: Any) -> Any:
    """The type of a field, without the null that may stand beside it."""
    others = [each for each in kind if each != "null"] if isinstance(kind, list) else [kind]
    return others[0] if len(others) == 1 else None


def _as_kind(arrow: pa.DataType, kind: Any) -> Change | None:
    """How the values of a column become those of a wider type that Avro's rules do not take them for."""
    if pa.types.is_decimal(arrow) and kind in ("double", "float"):
        return float
    if pa.types.is_boolean(arrow) and kind in ("int", "long"):
        return int
    return None


def _named_kinds(kind: Any) -> Iterator[tuple[str, Any]]:
    """The types in a parsed schema that have names, which stand for them further on."""
    if isinstance(kind, list):
        inner = kind
    elif isinstance(kind, dict):
        if "name" in kind:
            yield kind["name"], kind
        fields = [field["type"] for field in kind.get("fields", ())]
        inner = [*fields, *(kind[key] for key in ("items", "values") if key in kind)]
    else:
        return
    for each in inner:
        yield from _named_kinds(each)


def _time_problems(data_type: Any, kind: Any, named: Mapping[str, Any], path: str) -> Iterator[str]:
    """Points in time in a column that the schema has as another kind of time, with their paths.

    Args:
        data_type: of Spark.
        kind: of the parsed schema; a union has several.
        named: see `_named_kinds`.
        path: of the column or field.
    """
    if isinstance(kind, list):
        for each in kind:
            yield from _time_problems(data_type, each, named, path)
        return
    found = named.get(kind, {}) if isinstance(kind, str) else kind
    wanted = _SAME_TIMES.get(data_type.simpleString())
    given = str(found.get("logicalType", ""))
    if wanted and _TIMES.fullmatch(given) and not given.startswith(wanted):
        yield f"column '{path}' is {data_type.simpleString()}, and {given} in it: allowed is {wanted}micros"
    inner = {field["name"]: field["type"] for field in found.get("fields", ())}
    for field in getattr(data_type, "fields", ()):
        if field.name in inner:
            yield from _time_problems(field.dataType, inner[field.name], named, f"{path}.{field.name}")
    for part, key in (("elementType", "items"), ("valueType", "values")):
        if hasattr(data_type, part) and key in found:
            yield from _time_problems(getattr(data_type, part), found[key], named, path)


def _infinities(value: Any) -> int:
    """How many infinite numbers are in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return sum(map(_infinities, value))
    return int(isinstance(value, float) and math.isinf(value))


class AvroRows:
    """Writes rows as Avro data.

    Args:
        columns: of the rows.
        schema: a record, parsed.
        prefix: goes ahead of each datum.
        is_given: whether the schema was not made of the columns, so that their values may not fit its types.

    Raises:
        OptionError: a column is not a field of the schema, a field without a default is no column, or a
            timestamp with a time zone is one without in the schema, or the other way round.
    """

    def __init__(self, columns: StructType, schema: Any, prefix: bytes, *, is_given: bool) -> None:
        fastavro = load_fastavro()
        self._write = fastavro.schemaless_writer
        self._fits = fastavro.validate if is_given else None
        self._read = fastavro.schemaless_reader if is_given and "'float'" in str(schema) else None
        self._schema = schema
        self._prefix = prefix
        self._kinds = {field["name"]: _plain(field["type"]) for field in schema["fields"]}
        fields = {field["name"]: "default" in field for field in schema["fields"]}
        names = [field.name for field in columns.fields]
        problems = []
        for name in names:
            if name not in fields:
                near = difflib.get_close_matches(name, fields, n=1, cutoff=0.6)
                hint = f": did you mean '{near[0]}'?" if near else ""
                problems.append(f"column '{name}' is no field of it{hint}")
        problems += [
            f"field '{name}' is no column, and has no default"
            for name, has_default in fields.items()
            if name not in names and not has_default
        ]
        if is_given:
            named = dict(_named_kinds(schema))
            kinds = {each["name"]: each["type"] for each in schema["fields"]}
            for field in columns.fields:
                problems += _time_problems(field.dataType, kinds.get(field.name, ""), named, field.name)
        if problems:
            raise OptionError("the Avro schema does not fit the columns: " + "; ".join(problems))

    def of(self, batch: pa.RecordBatch) -> list[bytes]:
        """One datum for each row. Raises ValueError, or the error of the library, if a row does not fit."""
        columns = []
        for column, field in zip(batch.columns, batch.schema, strict=True):
            change = _as_kind(field.type, self._kinds.get(field.name))
            change = change or change_of(field.type, lambda _: None, keeps_nulls=True)
            values = in_utc(column).to_pylist()
            columns.append(values if change is None else [v if v is None else change(v) for v in values])
        names = batch.schema.names
        return [self._datum(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]

    def _datum(self, row: dict[str, Any]) -> bytes:
        # The writer itself cuts numbers to what their type holds: 1.5 and 2^40 as int, 5 as boolean.
        if self._fits and not self._fits(
            row, self._schema, raise_errors=False, strict=True, disable_tuple_notation=True
        ):
            raise ValueError("a value does not fit its type")
        stream = io.BytesIO()
        stream.write(self._prefix)
        self._write(stream, self._schema, row, strict_allow_default=True)
        if self._read:
            stream.seek(len(self._prefix))
            try:
                written = self._read(stream, self._schema, None)
            except (OverflowError, ValueError):
                return stream.getvalue()  # a date or time that Avro has a form for, and Python has none
            # A number too large for the 32 bits of a float has become infinity.
            if _infinities(written) > _infinities(row):
                raise ValueError("a number is too large for a float")
        return stream.getvalue()
