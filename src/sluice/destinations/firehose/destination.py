"""Amazon Data Firehose: rows become records of a delivery stream, through ``PutRecordBatch``.

Limits: https://docs.aws.amazon.com/firehose/latest/APIReference/API_PutRecordBatch.html
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.request_bodies import PreparedParameter
from sluice.aws.responses import outcomes_of
from sluice.destinations.common.batch_call import BatchCall
from sluice.destinations.common.columns import Column, check_columns, column_of, first_row, invalid_row
from sluice.errors import OptionError
from sluice.options import Option, OptionValues, matching
from sluice.sink.config import SinkLimits
from sluice.sink.contracts import StructType, SubmitResult

__all__ = ["FirehoseDestination", "FirehoseRowConverter"]

_NAME: Final = "firehose"
_DATA: Final = Column("data", ("binary", "string"), required=True)
_STAND_IN: Final = ({"Data": b""},)
# Rows turned into Python objects at a time, whatever the size of the batch they come in.
_SLICE: Final = 1024

DELIVERY_STREAM = Option(
    "deliveryStream",
    matching(
        "string", "one name of 1 to 64 letters, digits or any of _.-", re.compile(r"[a-zA-Z0-9_.-]{1,64}")
    ),
    None,
    "Name of the delivery stream to write to.",
    required=True,
)


class FirehoseRowConverter:
    """Makes records, which are plain bytes, of column ``data``. Other columns are not written."""

    def open(self, schema: StructType) -> None:
        """Checks the columns.

        Raises:
            OptionError: there is no column ``data``, or it has the wrong type.
        """
        check_columns(_NAME, [_DATA], schema)

    def convert(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The records of a batch, made slice by slice as they are asked for.

        Raises:
            InvalidRecordError: a row without data.
            OptionError: the batch has no column ``data``.
        """
        data = column_of(batch, _DATA.name)
        if data is None:
            raise OptionError(f"destination '{_NAME}': column 'data' ({_DATA.allowed}) is required")
        for start in range(0, len(data), _SLICE):
            rows = data.slice(start, _SLICE)
            if rows.null_count:
                raise invalid_row(_NAME, start + first_row(pc.is_null(rows)), "column 'data' is null")
            if not (pa.types.is_binary(rows.type) or pa.types.is_large_binary(rows.type)):
                rows = rows.cast(pa.large_binary() if pa.types.is_large_string(rows.type) else pa.binary())
            yield from rows.to_pylist()


class FirehoseDestination:
    """A delivery stream, as the async sink sees it.

    Args:
        connection: how to reach the service.
        delivery_stream: its name.
        client: makes the SDK's client; replaced in tests.
        clock: monotonic seconds.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (DELIVERY_STREAM,)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=500,
        max_batch_size_in_bytes=4 * 1024 * 1024,
        max_record_size_in_bytes=1000 * 1024,
    )

    def __init__(
        self,
        connection: ConnectionConfig,
        delivery_stream: str,
        *,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = delivery_stream
        self._call = BatchCall(
            connection, "firehose", "PutRecordBatch", delivery_stream, client=client, clock=clock
        )
        self.name = f"firehose delivery stream '{delivery_stream}'"

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> FirehoseDestination | None:
        """Makes the destination from the options. What cannot be is noted in `values`."""
        stream = values.get(DELIVERY_STREAM)
        return None if stream is None else cls(connection, stream)

    def create_converter(self) -> FirehoseRowConverter:
        return FirehoseRowConverter()

    def size_in_bytes(self, entry: bytes) -> int:
        """The data, before it is encoded for the wire."""
        return len(entry)

    def submit(self, entries: Sequence[bytes]) -> SubmitResult[bytes]:
        """Calls ``PutRecordBatch`` once.

        Raises:
            ServiceError: nothing is known to have been accepted, or nothing will be any more.
            OptionError: no client can be made from the connection options.
        """
        answer = self._call(
            DeliveryStreamName=self._stream,
            Records=PreparedParameter([{"Data": entry} for entry in entries], _STAND_IN),
        )
        return self._call.outcome_in_order(entries, outcomes_of(answer, "RequestResponses"))

    def is_fatal(self, error: Exception) -> bool:
        """See `BatchCall.is_fatal`."""
        return self._call.is_fatal(error)

    def close(self) -> None:
        """Nothing to let go of: clients live as long as the process."""
