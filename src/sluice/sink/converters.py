"""Element converters for any destination that takes data: all columns as JSON.

They serialize rows and leave the rest to the destination's own converter: the name of its data column, the
other columns (a partition key, a message group), and what it does not accept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import msgspec
import pyarrow as pa

from sluice.errors import InvalidRecordError, OptionError, SluiceError
from sluice.sink.contracts import Destination, ElementConverter, Origin, StructType
from sluice.sink.rows.json_rows import JsonRows, unsupported_type
from sluice.sink.rows.schema import PlainField, PlainSchema, PlainType, same_names
from sluice.sink.user_code.loading import destination_name, open_converter

__all__ = ["DataConverter", "JsonConverter"]

# Rows that are Python objects at a time.
_ROWS_AT_A_TIME: Final = 1024
# What serializing a value that Python or the format cannot hold may raise.
_UNSERIALIZABLE: Final = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, pa.ArrowException)


class DataConverter(ABC):
    """Makes entries whose data is a serialized row. Inherit from it to serialize in another way.

    Columns that the destination takes in addition to the data, such as ``partitionKey``, are not serialized:
    the destination's own converter handles them. So it has the destination's checks, too.

    Args:
        destination: whose entries to make; it must have a column of data (``data``, ``body``). None: entries
            are the data alone, as bytes.

    Attributes:
        format_name: for messages.
        is_text: whether the data is text, in UTF-8.
        is_json: whether the data is JSON.

    Raises:
        OptionError: the destination has no column of data, or does not take data of this form.
    """

    format_name: ClassVar[str] = ""
    is_text: ClassVar[bool] = False
    is_json: ClassVar[bool] = False

    def __init__(self, destination: Destination[Any] | None = None) -> None:
        self._own: ElementConverter[Any] | None = None
        self._beside: frozenset[str] = frozenset()
        self._data_column = ""
        if destination is None:
            return
        own = destination.create_converter()
        name = destination_name(destination)
        column = getattr(own, "data_column", None)
        if column is None:
            raise OptionError(f"{name} has no column of data that {self.format_name} could be")
        form = getattr(own, "data_form", "bytes")
        if (form == "json" and not self.is_json) or (form == "text" and not self.is_text):
            raise OptionError(f"{name} takes {form}, and {self.format_name} is not")
        self._own = own
        self._data_column = column
        known = getattr(own, "known_columns", None) or ()
        self._beside = frozenset(each.lower() for each in known) - {column.lower()}

    def check(self, schema: StructType) -> None:  # noqa: B027 - every column will do by default
        """Checks the columns that are to be serialized. Raises OptionError."""

    @abstractmethod
    def serialize(self, batch: pa.RecordBatch) -> Iterable[bytes]:
        """The data of each row, in order. With more or fewer of them the task fails.

        Raises:
            ValueError, TypeError, KeyError, ArithmeticError: a row cannot be serialized. The message is not
                shown: it may hold the row's data.
        """

    def open(self, schema: StructType, origin: Origin | None = None) -> None:
        """Checks the columns; the destination's own converter checks those other than the data.

        Raises:
            OptionError: the destination or the format cannot take such rows.
        """
        beside = [field for field in schema.fields if field.name.lower() in self._beside]
        rest = [field for field in schema.fields if field.name.lower() not in self._beside]
        # Python has no rows with them: a dictionary holds a name once.
        twice = sorted({name for name, _ in same_names(PlainSchema(rest), key=str)})
        if not rest:
            raise OptionError(f"the rows have no column to write as {self.format_name}")
        if twice:
            raise OptionError(f"columns have the same name: {', '.join(twice)}")
        self.check(PlainSchema(rest))
        if self._own is not None:
            own = PlainSchema([*beside, PlainField(self._data_column, PlainType("binary"))])
            open_converter(self._own, own, origin or Origin(""))

    def convert(self, batch: pa.RecordBatch) -> Iterable[Any]:
        """The entries of a batch, in the order of its rows.

        Raises:
            InvalidRecordError: a row cannot be serialized, or the destination does not accept it.
        """
        beside = [n for n, name in enumerate(batch.schema.names) if name.lower() in self._beside]
        rest = [n for n in range(batch.num_columns) if n not in beside]
        data = self._serialized(batch.select(rest))
        if self._own is None:
            return data
        names = [*(batch.schema.names[n] for n in beside), self._data_column]
        arrays = [*(batch.column(n) for n in beside), pa.array(data, pa.large_binary())]
        return self._own.convert(pa.record_batch(arrays, names=names))

    def _serialized(self, batch: pa.RecordBatch) -> list[bytes]:
        data: list[bytes] = []
        for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
            count = min(_ROWS_AT_A_TIME, batch.num_rows - start)
            try:
                data.extend(self.serialize(batch.slice(start, count)))
            except _UNSERIALIZABLE as error:
                last = start + count - 1
                rows = f"row {start}" if last == start else f"one of rows {start} to {last}"
                failure = f"cannot be written as {self.format_name}: {type(error).__name__}"
                raise InvalidRecordError(
                    f"{rows} of a batch of rows (counted from 0) {failure}", reason=f"the row {failure}"
                ) from None
            if len(data) != start + count:
                raise SluiceError(
                    f"serialize of {type(self).__name__} made {len(data) - start} data of {count} rows: "
                    "it makes the data of each row, in their order"
                )
        return data


class JsonConverter(DataConverter):
    """Makes one JSON object of each row, as Spark's ``to_json`` does.

    Nulls are left out, also inside structs; arrays and maps keep them. Binary is base64, NaN and infinities
    are strings. Timestamps are in UTC, whatever Spark's time zone, and keep their microseconds, of which
    ``to_json`` writes none.
    """

    format_name = "JSON"
    is_text = True
    is_json = True

    def __init__(self, destination: Destination[Any] | None = None) -> None:
        super().__init__(destination)
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def check(self, schema: StructType) -> None:
        """See `DataConverter.check`."""
        problems = [
            f"column '{field.name}' is {found}"
            for field in schema.fields
            if (found := unsupported_type(field.dataType, text_keys=True))
        ]
        if problems:
            raise OptionError("JSON has no form for some columns: " + "; ".join(problems))

    def serialize(self, batch: pa.RecordBatch) -> list[bytes]:
        """See `DataConverter.serialize`."""
        return [self._encoder.encode(row) for row in JsonRows(batch.schema).of(batch)]
