"""Amazon Data Firehose: rows become records of a delivery stream, through ``PutRecordBatch``.

Limits: https://docs.aws.amazon.com/firehose/latest/APIReference/API_PutRecordBatch.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.aws.wire.responses import outcomes_of
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.destinations.common.columns import Column, OneColumnConverter
from sluice.destinations.common.compression import COMPRESSION, compressed, restored
from sluice.destinations.common.entries import BYTES, wrong_entry
from sluice.destinations.common.parted_requests import AwsDestination
from sluice.options import Option, OptionValues, matching
from sluice.sink import SinkLimits

__all__ = ["FirehoseDestination", "FirehoseRowConverter"]

_PLACEHOLDER: Final = ({"Data": b""},)

DELIVERY_STREAM = Option(
    "deliveryStream",
    matching("string", "one name of 1 to 64 letters, digits or any of _.-", r"[a-zA-Z0-9_.-]{1,64}"),
    None,
    "Name of the delivery stream to write to.",
    required=True,
)


class FirehoseRowConverter(OneColumnConverter):
    """Makes records, which are plain bytes, from column ``data``."""

    DESTINATION = "firehose"
    COLUMN = Column("data", ("binary", "string"), required=True)
    data_column = COLUMN.name
    known_columns = (COLUMN.name,)

    def __init__(self, compression: str = "none") -> None:
        self._compression = compression

    def entries(self, values: list[bytes], first: int) -> Iterator[bytes]:  # noqa: ARG002
        return iter(compressed(values, self._compression))


class FirehoseDestination(AwsDestination[bytes]):
    """Writes records to a delivery stream.

    Args:
        connection: how to reach the service.
        delivery_stream: the name of the delivery stream.
        compression: of the data of each row.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (DELIVERY_STREAM, COMPRESSION)
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=500,
        max_batch_size_in_bytes=4 * 1024 * 1024,
        max_record_size_in_bytes=1000 * 1024,
    )

    def __init__(self, connection: ConnectionConfig, delivery_stream: str, compression: str = "none") -> None:
        super().__init__(BatchCall(connection, "firehose", "PutRecordBatch", delivery_stream))
        self._stream = delivery_stream
        self._compression = compression
        self.name = f"firehose delivery stream '{delivery_stream}'"

    @classmethod
    def from_options(cls, values: OptionValues, connection: ConnectionConfig) -> FirehoseDestination | None:
        """See `DestinationClass.from_options`."""
        stream = values.get(DELIVERY_STREAM)
        return None if stream is None else cls(connection, stream, values.require(COMPRESSION))

    def create_converter(self) -> FirehoseRowConverter:
        return FirehoseRowConverter(self._compression)

    def size_in_bytes(self, entry: bytes) -> int:
        """The size of the data, before base64.

        Raises:
            SluiceError: the entry is not bytes.
        """
        if not isinstance(entry, BYTES):
            raise wrong_entry("firehose", "an entry", entry, "bytes")
        return len(entry)

    def unpacked(self, entry: bytes) -> Sequence[bytes]:
        """The data as it was before it was compressed."""
        return (restored(entry, self._compression),)

    def send_part(self, entries: Sequence[bytes]) -> list[Refusal | None]:
        answer = self.call(
            DeliveryStreamName=self._stream,
            Records=PreparedParameter([{"Data": entry} for entry in entries], _PLACEHOLDER),
        )
        with self.call.reading():
            outcomes = outcomes_of(answer, "RequestResponses")
        return self.call.refusals_in_order(entries, outcomes)
