"""Functions of single values as functions of Spark's columns.

PySpark 4.0 has no Arrow functions without pandas, so there the same functions run row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluice.errors import OptionError, SluiceError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql._typing import ColumnOrName

__all__ = ["ERRORS", "BadValueError", "ColumnFunction"]

ERRORS: Final = {"errors": ("fail", "null")}
"""What happens with bad values: see `ColumnFunction.settings`."""

_TEXT: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary(), pa.null())


class BadValueError(ValueError):
    """A value is not what the function reads. The message says why, and holds none of the data."""


@dataclass(frozen=True)
class ColumnFunction:
    """A function of a column, and the settings that it takes.

    Attributes:
        name: in SQL with ``sluice_`` before it.
        make: the result for a value (bytes) and for all settings but `errors`. Raises BadValueError.
        ddl: the type of its results as Spark writes it.
        arrow: the same type of Arrow's.
        takes_text: whether a column of strings is read as UTF-8, or refused.
        settings: the allowed values of each setting, in the order of the parameters; the default is first.
    """

    name: str
    make: Callable[..., Any]
    ddl: str
    arrow: Any
    takes_text: bool = False
    settings: Mapping[str, Sequence[str]] = field(default_factory=lambda: ERRORS)

    def __call__(self, col: ColumnOrName, **settings: str) -> Column:
        """The function of a column.

        Raises:
            OptionError: a setting is not allowed.
        """
        for name, value in settings.items():
            self._check(name, value)
        column: Column = self.udf(**settings)(col)
        return column

    def udf(self, **settings: str) -> Any:
        """The function as Spark takes it. What `settings` lacks comes with each call."""
        from pyspark.sql import functions  # noqa: PLC0415 - workers need it only here

        def of_arrays(*columns: pa.Array, **named: pa.Array) -> pa.Array:
            return self.of_arrays(*columns, **named, **settings)

        def of_row(*values: Any, **named: Any) -> Any:
            columns = [pa.array([value]) for value in values]
            settings_of_row = {name: pa.array([value]) for name, value in named.items()}
            return of_arrays(*columns, **settings_of_row)[0].as_py()

        of_arrays.__name__ = of_row.__name__ = f"sluice_{self.name}"
        if hasattr(functions, "arrow_udf"):
            return functions.arrow_udf(of_arrays, self.ddl)
        return functions.udf(of_row, self.ddl)

    def of_arrays(self, *columns: Any, **named: Any) -> Any:
        """The results for an Arrow array. Settings are arrays as well, or text.

        Raises:
            OptionError: the column has another type, or a setting is not allowed.
            SluiceError: a value is bad, and `errors` is ``fail``; or the results are too large for Arrow.
        """
        given = self._bound(columns, named)
        values = self._bytes_of(given.pop("col"))
        for name, setting in given.items():
            for value in [setting] if isinstance(setting, str) else setting.unique().to_pylist():
                self._check(name, value)
        errors, *settings = (
            repeat(each) if isinstance(each, str) else each.to_pylist()
            for each in (given.pop("errors", "fail"), *given.values())
        )
        made = pa.array(map(self._of_value, values, errors, *settings), self.arrow, size=len(values))
        if isinstance(made, pa.ChunkedArray):
            raise SluiceError(
                f"{self.name}: the results for a batch of {len(values)} rows are larger than 2 GiB: lower "
                "Spark's setting spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        return made

    def _bound(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, `col` first and then the settings in their order."""
        defaults = {name: allowed[0] for name, allowed in self.settings.items()}
        names = ("col", *defaults)
        arguments = {**dict(zip(names, given, strict=False)), **named}
        if len(given) > len(names) or "col" not in arguments or not arguments.keys() <= {*names}:
            raise OptionError(f"sluice_{self.name} takes the arguments {', '.join(names)}")
        return {"col": None, **defaults, **arguments}

    def _check(self, name: str, value: Any) -> None:
        if value not in self.settings[name]:
            allowed = ", ".join(self.settings[name])
            raise OptionError(f"{self.name}: {name} is {value!r}: allowed are {allowed}")

    def _bytes_of(self, column: Any) -> list[bytes | None]:
        if column.type in _TEXT and self.takes_text:
            # Spark's strings need not be UTF-8.
            column = column.cast(pa.binary() if column.type == pa.string() else pa.large_binary())
        if column.type not in _BYTES:
            takes = "binary or string" if self.takes_text else "binary (unbase64 makes it of base64)"
            raise OptionError(f"{self.name}: the column is {column.type}: allowed is {takes}")
        values: list[bytes | None] = column.to_pylist()
        return values

    def _of_value(self, value: bytes | None, errors: str, *settings: str) -> Any:
        if value is None:
            return None
        try:
            return self.make(value, *settings)
        except BadValueError as error:
            if errors == "null":
                return None
            raise SluiceError(f"{self.name}: {error}; with errors 'null' such a value becomes null") from None
