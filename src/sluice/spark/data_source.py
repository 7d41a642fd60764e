"""Makes the `DataSource` class of a source.

Spark imports the module of such a class in every session to learn the name of the format. The source
itself takes long to import, so it is imported when a query uses the format.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, cast

from pyspark.sql.datasource import DataSource

from sluice.errors import OptionError
from sluice.spark.border import shorten_traceback
from sluice.spark.catalog_tables import explain_if_of_table, is_create_table, read_table
from sluice.spark.logs import configure_driver_log

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from sluice.source.contracts import Source

__all__ = ["SourceDataSource", "data_source"]


_QUOTED: Final = r"""`[^`]*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_TIMESTAMP: Final = re.compile(
    _QUOTED + r"|\b(?P<type>timestamp)\b(?!\s*:)(?!\s+(?!(?:not|comment|default|collate)\b)[\w`])",
    re.IGNORECASE,
)
"""The type in a schema as text. A column or field of this name is followed by its own type."""
_NULLS: Final = re.compile(r'"(?:nullable|containsNull|valueContainsNull)":(true|false)')
_BETWEEN: Final = re.compile(r"\s*([:,<>()])\s*")
_UNTYPED: Final = re.compile(rf"\s+not\s+null\b|\s+comment\s+(?:{_QUOTED})", re.IGNORECASE)
"""Text that does not affect a column's type."""
_TYPE: Final = re.compile(r"(?<=[ :<,])[a-zA-Z_]+(?=[,<>(]|\Z)")
"""The name of a type, in text without spaces around punctuation. A column's name is followed by a space."""
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_DECIMAL: Final = re.compile(r"(?<=[ :<,])decimal(?:\((\d+)\))?(?=[,>]|\Z)")


class SourceDataSource(DataSource):
    """``spark.readStream.format(...)`` and ``spark.read.format(...)`` of a `sluice.source.Source`.

    Attributes:
        SOURCE: the source's class, or its import path (``package.module:Name``).
        NAME: of the format.
    """

    SOURCE: ClassVar[Any]
    NAME: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark first calls `schema`, then pickles this object. The copy makes the readers.
        self._has_told_schema = False

    def __reduce__(self) -> tuple[Any, ...]:
        # This class cannot be pickled by name, because no module has it under its own name.
        return _remade, (self.SOURCE, self.NAME, self.options, self._has_told_schema)

    @shorten_traceback
    def schema(self) -> Any:
        """Returns the columns. Called at ``load()``, and for ``CREATE TABLE`` without columns.

        Raises:
            OptionError: the options cannot work.
        """
        source_class = self._source_class()
        if is_create_table(self.name(), self.options, source_class.option_keys(), source_class.TABLE_OPTIONS):
            if source_class.TABLE_SCHEMA is None:
                raise OptionError(
                    f"{self.name()}: its columns depend on options, which Spark does not keep with a table: "
                    "list the columns in CREATE TABLE"
                )
            return _for_spark(source_class.TABLE_SCHEMA)
        source = self._source()
        self._has_told_schema = True  # Spark does not ask if the user or a table gives the schema
        return _for_spark(source.schema())

    @shorten_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """Called for ``spark.read``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import BatchReader  # noqa: PLC0415 - see above

        source = self._source(streaming=False)
        self._check_schema(source, schema)
        return BatchReader(source, schema)

    @shorten_traceback
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Called for ``spark.readStream``.

        Raises:
            OptionError: the options or the schema cannot work.
        """
        from sluice.spark.source_reader import make_stream_reader  # noqa: PLC0415 - see above

        source = self._source(streaming=True)
        self._check_schema(source, schema)
        return make_stream_reader(source, schema)

    @shorten_traceback
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Called for ``df.write``. Raises OptionError: the format only reads."""
        del schema, overwrite
        raise self._unwritable()

    @shorten_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        """As `writer`, for ``df.writeStream``."""
        del schema, overwrite
        raise self._unwritable()

    def _unwritable(self) -> OptionError:
        return OptionError(f"{self.name()}: there is nothing to write to: write with format 'async-sink'")

    def _check_schema(self, source: Source, schema: StructType) -> None:
        """Raises OptionError for a user's schema that differs from the source's."""
        own = source.schema()
        if isinstance(own, str) and self._has_told_schema:
            return  # Spark has parsed it from the source's text, which we cannot always normalize
        expected = own if isinstance(own, str) else _text_of(_for_spark(own))
        if _normal(_text_of(schema)) != _normal(expected):
            raise OptionError(f"{source.name}: the schema can't be chosen; it is always: {expected}")
        if isinstance(own, str):
            is_stricter = "not null" not in own.lower() and not all(_nulls(schema))
        else:
            pairs = zip(_nulls(_for_spark(own)), _nulls(schema), strict=False)
            is_stricter = any(own_has > has for own_has, has in pairs)
        if is_stricter:
            raise OptionError(f"{source.name}: columns can't be NOT NULL; the schema is always: {expected}")

    @classmethod
    def _source_class(cls) -> type[Source]:
        if isinstance(cls.SOURCE, str):
            module, _, name = cls.SOURCE.partition(":")
            found: type[Source] = getattr(importlib.import_module(module), name)
            return found
        given: type[Source] = cls.SOURCE
        return given

    def _source(self, *, streaming: bool | None = None) -> Source:
        source_class = self._source_class()
        configure_driver_log()
        try:
            return source_class.configured(dict(self.options), streaming=streaming)
        except OptionError as error:
            if streaming is None:  # at load(), which is not called for tables
                raise
            raise explain_if_of_table(error, self.options, read_table(source_class.TABLE_OPTIONS)) from None


def data_source(source: type[Source] | str, *, name: str | None = None) -> type[DataSource]:
    """See `sluice.data_source`."""
    if isinstance(source, str):
        if name is None or ":" not in source:
            raise OptionError(
                f"data_source({source!r}): a source given as text is 'package.module:Name', and needs the "
                "name of its format: data_source('...', name='my-format')"
            )
        called = source.rpartition(":")[2]
    else:
        name = name or getattr(source, "name", None)
        if not isinstance(name, str) or not name:
            raise OptionError(f"data_source({source.__name__}): the class needs a name: name = 'my-format'")
        called = source.__name__
    return type(f"{called}DataSource", (SourceDataSource,), {"SOURCE": source, "NAME": name, "__doc__": None})


def _remade(source: Any, name: str, options: Any, has_told_schema: bool) -> DataSource:
    made: Any = data_source(source, name=name)(options)
    made._has_told_schema = has_told_schema  # noqa: SLF001 - see `__reduce__`
    return cast("DataSource", made)


def _for_spark(schema: Any) -> Any:
    """Converts a schema to Spark's form; no setting changes the types of the result."""
    if isinstance(schema, str):
        # Otherwise spark.sql.timestampType decides the type. Spark's own parser is only in the JVM.
        return _TIMESTAMP.sub(lambda found: "timestamp_ltz" if found["type"] else found[0], schema)
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - imports Arrow

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _nulls(schema: StructType) -> list[bool]:
    """Whether nulls are allowed, for each column, field, element and value in turn."""
    return [word == "true" for word in _NULLS.findall(schema.json())]


def _text_of(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def _normal(text: str) -> str:
    """Normalizes a schema as text: types as in `simpleString`, no comments."""
    text = _UNTYPED.sub("", text).replace("`", "")
    text = _BETWEEN.sub(r"\1", " ".join(text.split()))

    def canonical(found: re.Match[str]) -> str:
        name = found[0].lower()
        return _ALIASES.get(name, name)

    return _DECIMAL.sub(lambda found: f"decimal({found[1] or 10},0)", _TYPE.sub(canonical, text))
