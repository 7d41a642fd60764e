"""Kinesis Data Streams: rows become records, in batches, through ``PutRecords``.

Limits: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.request_bodies import PreparedParameter
from sluice.aws.responses import Outcome, outcomes_of
from sluice.destinations.common.batch_call import BatchCall
from sluice.destinations.kinesis.aggregating_destination import DEFAULT_LIMIT, AggregatingDestination
from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter
from sluice.destinations.kinesis.shard_map import Shards, shards_of
from sluice.options import BOOLEAN, Option, OptionValues, matching
from sluice.sink.config import SinkLimits
from sluice.sink.contracts import SubmitResult
from sluice.sink.options import MAX_BATCH_SIZE_IN_BYTES, MAX_RECORD_SIZE_IN_BYTES

__all__ = ["KinesisStreamsDestination"]

_MIB: Final = 1024 * 1024
_STAND_IN: Final = ({"Data": b"", "PartitionKey": "-"},)

_ARN = re.compile(
    r"arn:aws[a-z-]*:kinesis:(?P<region>[a-z0-9-]+):\d{12}:stream/(?P<name>[a-zA-Z0-9_.-]{1,128})"
)


STREAM_NAME = Option(
    "streamName",
    matching(
        "string", "one name of 1 to 128 letters, digits or any of _.-", re.compile(r"[a-zA-Z0-9_.-]{1,128}")
    ),
    None,
    "Name of the stream to write to; this or `streamArn` is required.",
)
STREAM_ARN = Option(
    "streamArn",
    matching("arn", "one arn:aws:kinesis:<region>:<account>:stream/<name>", _ARN),
    None,
    "ARN of the stream to write to; its region holds unless `region` is given.",
)
AGGREGATE = Option(
    "aggregate",
    BOOLEAN,
    False,
    "Pack rows into records of up to 50 KiB, in the format of the Kinesis Producer Library. Readers have to "
    "unpack them; `kinesis-efo` does.",
    shown_default="false",
)


class KinesisStreamsDestination:
    """A stream, as the async sink sees it.

    Args:
        connection: how to reach the service.
        stream_name: this or
        stream_arn: this one.
        client: makes the SDK's client; replaced in tests.
        clock: monotonic seconds.
    """

    OPTIONS: ClassVar[Sequence[Option[Any]]] = (STREAM_NAME, STREAM_ARN, AGGREGATE)
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
        arn = _ARN.fullmatch(stream_arn) if stream_arn else None
        if arn is not None and connection.region is None:
            connection = replace(connection, region=arn["region"])
        self._stream = {"StreamARN": stream_arn} if stream_arn else {"StreamName": stream_name}
        self._connection = connection
        self._arn = stream_arn
        self._target = target = stream_name or (arn["name"] if arn else str(stream_arn))
        self._call = BatchCall(connection, "kinesis", "PutRecords", target, client=client, clock=clock)
        self.name = f"kinesis stream '{target}'"

    @classmethod
    def from_options(
        cls, values: OptionValues, connection: ConnectionConfig
    ) -> KinesisStreamsDestination | AggregatingDestination | None:
        """Makes the destination from the options. What cannot be is noted in `values`."""
        name, arn = values.get(STREAM_NAME), values.get(STREAM_ARN)
        if values.given(STREAM_NAME) and values.given(STREAM_ARN):
            values.reject(STREAM_ARN.key, f"and '{STREAM_NAME.key}' exclude one another: give one of them")
            return None
        if name is None and arn is None:
            values.reject(STREAM_NAME.key, f"or '{STREAM_ARN.key}' is required")
            return None
        plain = cls(connection, stream_name=name, stream_arn=arn)
        if not values.get(AGGREGATE):
            return plain
        # An aggregate must not be larger than the user lets a record be; its key is one byte.
        limits = filter(None, (values.get(MAX_RECORD_SIZE_IN_BYTES), values.get(MAX_BATCH_SIZE_IN_BYTES)))
        return AggregatingDestination(
            plain, plain.shards, limit=min([DEFAULT_LIMIT, *(each - 1 for each in limits)])
        )

    @property
    def shards(self) -> Shards:
        """The stream's shards; listed when they are asked for."""
        return shards_of(self._connection, self._target, self._arn)

    def create_converter(self) -> KinesisRowConverter:
        return KinesisRowConverter()

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        """Data and partition key count, the key as UTF-8."""
        key = entry.partition_key
        return len(entry.data) + (len(key) if key.isascii() else len(key.encode()))

    def submit(self, entries: Sequence[KinesisEntry]) -> SubmitResult[KinesisEntry]:
        """Calls ``PutRecords`` once.

        Raises:
            ServiceError: nothing is known to have been accepted.
            OptionError: no client can be made from the connection options.
        """
        return self.put(entries)[0]

    def put(self, entries: Sequence[KinesisEntry]) -> tuple[SubmitResult[KinesisEntry], Sequence[Outcome]]:
        """The same; beside the result, what the service says of each entry. Raises as `submit` does."""
        answer = self._call(Records=PreparedParameter(entries, _STAND_IN), **self._stream)
        outcomes = outcomes_of(answer, "Records")
        return self._call.outcome_in_order(entries, outcomes), outcomes

    def is_fatal(self, error: Exception) -> bool:
        """See `BatchCall.is_fatal`."""
        return self._call.is_fatal(error)

    def close(self) -> None:
        """Nothing to let go of: clients live as long as the process."""
