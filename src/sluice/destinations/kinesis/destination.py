"""Kinesis Data Streams: rows become records of a stream, or aggregates of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import NAME_FORM, STREAM_ARN_FORM, StreamArn, parse_name
from sluice.destinations.common.compression import COMPRESSION
from sluice.destinations.kinesis.aggregating_destination import DEFAULT_LIMIT, AggregatingDestination
from sluice.destinations.kinesis.converter import KinesisRowConverter
from sluice.destinations.kinesis.foreign_names import SINK_NAMES
from sluice.destinations.kinesis.put_records import MAX_BYTES, MAX_RECORDS, PutRecords
from sluice.option_names import ForeignName
from sluice.options import BOOLEAN, Kind, Option, OptionValues
from sluice.sink import SinkLimits
from sluice.sink.options import MAX_BATCH_SIZE_IN_BYTES, MAX_RECORD_SIZE_IN_BYTES

__all__ = ["KinesisStreamsDestination"]

STREAM_NAME = Option(
    "streamName",
    Kind("string", f"one name of {NAME_FORM}", parse_name),
    None,
    "Name of the stream to write to; this or `streamArn` is required.",
)
STREAM_ARN: Option[StreamArn] = Option(
    "streamArn",
    Kind("arn", f"one {STREAM_ARN_FORM}", StreamArn.parse),
    None,
    "ARN of the stream to write to. If `region` is not set, the ARN's region is used.",
)
AGGREGATE = Option(
    "aggregate",
    BOOLEAN,
    False,
    "Pack rows into records of up to 50 KiB, in the format of the Kinesis Producer Library. Readers must "
    "unpack them, as `kinesis-efo` does.",
    shown_default="false",
)


class KinesisStreamsDestination(PutRecords):
    """Writes each row as a record."""

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (STREAM_NAME, STREAM_ARN, AGGREGATE, COMPRESSION)
    FOREIGN_NAMES: ClassVar[Sequence[ForeignName]] = SINK_NAMES
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=MAX_RECORDS,
        max_batch_size_in_bytes=MAX_BYTES,
        max_record_size_in_bytes=MAX_BYTES,
        aimd_decrease_factor=0.99,
    )

    @classmethod
    def from_options(
        cls, values: OptionValues, connection: ConnectionConfig
    ) -> KinesisStreamsDestination | AggregatingDestination | None:
        """See `DestinationClass.from_options`."""
        name, arn = values.get(STREAM_NAME), values.get(STREAM_ARN)
        if values.mentions(STREAM_NAME) and values.mentions(STREAM_ARN):
            values.reject(STREAM_ARN.key, f"and '{STREAM_NAME.key}' exclude one another: give one of them")
            return None
        if name is None and arn is None:
            if not values.mentions(STREAM_NAME) and not values.mentions(STREAM_ARN):
                values.reject(STREAM_NAME.key, f"or '{STREAM_ARN.key}' is required")
            return None
        compression = values.require(COMPRESSION)
        plain = cls(
            connection,
            stream_name=name,
            stream_arn=None if arn is None else arn.text,
            compression=compression,
        )
        if not values.get(AGGREGATE):
            return plain
        # The record of an aggregate is one byte larger: it has the partition key "a".
        limits = filter(None, (values.get(MAX_RECORD_SIZE_IN_BYTES), values.get(MAX_BATCH_SIZE_IN_BYTES)))
        return AggregatingDestination(
            plain,
            plain.shards,
            limit=min([DEFAULT_LIMIT, *(each - 1 for each in limits)]),
            compression=compression,
        )

    def create_converter(self) -> KinesisRowConverter:
        return KinesisRowConverter(self.compression)
