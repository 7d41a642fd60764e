"""Kinesis Data Streams: rows become records of a stream, through ``PutRecords``.

Limits: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import NAME_FORM, STREAM_ARN_FORM, StreamArn, parse_name
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.aws.wire.responses import Outcome, outcomes_of
from sluice.destinations.common.batch_call import AwsDestination, BatchCall, Refusal
from sluice.destinations.common.entry_types import BYTES, wrong_entry
from sluice.destinations.common.parted_requests import PartedRequests
from sluice.destinations.common.utf8 import utf8_length
from sluice.destinations.kinesis.aggregating_destination import DEFAULT_LIMIT, AggregatingDestination
from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter
from sluice.destinations.kinesis.foreign_names import SINK_NAMES
from sluice.destinations.kinesis.shard_map import ShardMapCache, shard_map_cache
from sluice.option_names import ForeignName
from sluice.options import BOOLEAN, Kind, Option, OptionValues
from sluice.sink import SinkLimits, SubmitResult
from sluice.sink.options import MAX_BATCH_SIZE_IN_BYTES, MAX_RECORD_SIZE_IN_BYTES

__all__ = ["KinesisStreamsDestination"]

_MIB: Final = 1024 * 1024
# In the message of a request that was refused as a whole: it is for a record's key, or for its size.
_NAMES_A_RECORD: Final = re.compile(r"partitionkey|member\.data|\bsize\b|too large", re.IGNORECASE)
_PLACEHOLDER: Final = ({"Data": b"", "PartitionKey": "-"},)

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
    "ARN of the stream to write to. The region is that of the ARN unless `region` is set.",
)
AGGREGATE = Option(
    "aggregate",
    BOOLEAN,
    False,
    "Pack rows into records of up to 50 KiB, in the format of the Kinesis Producer Library. Readers have to "
    "unpack them; `kinesis-efo` does.",
    shown_default="false",
)


class KinesisStreamsDestination(AwsDestination[KinesisEntry]):
    """Writes records to a stream. Give either `stream_name` or `stream_arn`.

    Args:
        connection: how to reach the service. Without a region, that of the ARN is used.
        stream_name: the name of the stream.
        stream_arn: the ARN of the stream.
        client: makes the SDK's client; replaced in tests.
        clock: monotonic seconds.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (STREAM_NAME, STREAM_ARN, AGGREGATE)
    FOREIGN_NAMES: ClassVar[Sequence[ForeignName]] = SINK_NAMES
    LIMITS: ClassVar[SinkLimits] = SinkLimits(
        max_batch_size=500,
        max_batch_size_in_bytes=10 * _MIB,
        max_record_size_in_bytes=10 * _MIB,
        aimd_decrease_factor=0.99,
    )

    def __init__(
        self,
        connection: ConnectionConfig,
        *,
        stream_name: str | None = None,
        stream_arn: str | None = None,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        arn = StreamArn.parse(stream_arn) if stream_arn else None
        if arn is not None and connection.region is None:
            connection = replace(connection, region=arn.region)
        self._address = {"StreamName": stream_name} if arn is None else {"StreamARN": arn.text}
        self._connection = connection
        self._arn = stream_arn
        self._stream = stream_name or (arn.stream if arn else "")
        call = BatchCall(
            connection,
            "kinesis",
            "PutRecords",
            self._stream,
            says_entry=lambda sentence: _NAMES_A_RECORD.search(sentence) is not None,
            client=client,
            clock=clock,
        )
        super().__init__(call)
        self._requests = PartedRequests(
            call,
            send=self._send,
            refuse=_refused,
            is_accepted=lambda result: result[1] is None,
            size_of=_size_of,
        )
        self.name = f"kinesis stream '{self._stream}'"

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
        plain = cls(connection, stream_name=name, stream_arn=None if arn is None else arn.text)
        if not values.get(AGGREGATE):
            return plain
        # The record of an aggregate is one byte larger: it has the partition key "a".
        limits = filter(None, (values.get(MAX_RECORD_SIZE_IN_BYTES), values.get(MAX_BATCH_SIZE_IN_BYTES)))
        return AggregatingDestination(
            plain, plain.shards, limit=min([DEFAULT_LIMIT, *(each - 1 for each in limits)])
        )

    @property
    def shards(self) -> ShardMapCache:
        """The stream's shards, which are listed when they are needed."""
        return shard_map_cache(self._connection, self._stream, self._arn)

    def create_converter(self) -> KinesisRowConverter:
        return KinesisRowConverter()

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        """The size of the data and of the partition key in UTF-8.

        Raises:
            SluiceError: the entry is none, or its data are no bytes.
        """
        if not isinstance(entry, KinesisEntry):
            raise wrong_entry("kinesis", "an entry", entry, "KinesisEntry")
        return _size_of(entry)

    def submit(self, entries: Sequence[KinesisEntry]) -> SubmitResult[KinesisEntry]:
        """Calls ``PutRecords``, more than once where the service refuses a request as a whole.

        Raises:
            ServiceError: no record is known to have been accepted, or none will be any more.
            OptionError: no client can be made from the connection options.
        """
        return self.put(entries)[0]

    def put(self, entries: Sequence[KinesisEntry]) -> tuple[SubmitResult[KinesisEntry], Sequence[Outcome]]:
        """As `submit`. Also returns the service's outcome for each entry."""
        outcomes = self._requests(entries)
        return self._call.result(entries, {n: each[1] for n, each in enumerate(outcomes) if each[1]}), [
            outcome for outcome, _ in outcomes
        ]

    def _send(self, entries: Sequence[KinesisEntry]) -> list[tuple[Outcome, Refusal | None]]:
        answer = self._call(Records=PreparedParameter(entries, _PLACEHOLDER), **self._address)
        with self._call.reading():
            outcomes = outcomes_of(answer, "Records")
        return list(zip(outcomes, self._call.refusals_in_order(entries, outcomes), strict=True))


def _refused(refusal: Refusal) -> tuple[Outcome, Refusal]:
    return Outcome(refusal.code, refusal.message), refusal


def _size_of(entry: KinesisEntry) -> int:
    data, key = entry.data, entry.partition_key
    if not isinstance(data, BYTES):
        raise wrong_entry("kinesis", "an entry with data", data, "bytes")
    if not isinstance(key, str):
        raise wrong_entry("kinesis", "an entry with a partition key", key, "str")
    return len(data) + utf8_length(key)
