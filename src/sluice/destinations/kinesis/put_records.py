"""Sends records to a stream through ``PutRecords``.

Limits: https://docs.aws.amazon.com/kinesis/latest/APIReference/API_PutRecords.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import StreamArn
from sluice.aws.wire.request_bodies import PreparedParameter
from sluice.aws.wire.responses import outcomes_of
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.destinations.common.entries import BYTES, utf8_length, wrong_entry
from sluice.destinations.common.parted_requests import AwsDestination
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.kinesis.shard_map import ShardMapCache, shard_map_cache
from sluice.sink import SubmitResult

__all__ = ["MAX_BYTES", "MAX_RECORDS", "PutRecords"]

MAX_RECORDS: Final = 500
MAX_BYTES: Final = 10 * 1024 * 1024
"""Of a request, and of a record."""
# In the message of a request that was refused as a whole: it is for a record's key, or for its size.
_NAMES_A_RECORD: Final = re.compile(r"partitionkey|member\.data|\bsize\b|too large", re.IGNORECASE)
_PLACEHOLDER: Final = ({"Data": b"", "PartitionKey": "-"},)


class PutRecords(AwsDestination[KinesisEntry]):
    """What both ways to write to a stream have in common. Give either `stream_name` or `stream_arn`.

    Args:
        connection: how to reach the service. Without a region, the ARN's is used.
        stream_name: the name of the stream.
        stream_arn: the ARN of the stream.
        compression: of the data of each row.
    """

    def __init__(
        self,
        connection: ConnectionConfig,
        *,
        stream_name: str | None = None,
        stream_arn: str | None = None,
        compression: str = "none",
    ) -> None:
        self.compression = compression
        arn = StreamArn.parse(stream_arn) if stream_arn else None
        if arn is not None and connection.region is None:
            connection = replace(connection, region=arn.region)
        self._address = {"StreamName": stream_name} if arn is None else {"StreamARN": arn.text}
        self._connection = connection
        self._arn = stream_arn
        self._stream = stream_name or (arn.stream if arn else "")
        super().__init__(
            BatchCall(
                connection,
                "kinesis",
                "PutRecords",
                self._stream,
                says_entry=lambda sentence: _NAMES_A_RECORD.search(sentence) is not None,
            )
        )
        self.name = f"kinesis stream '{self._stream}'"

    @property
    def shards(self) -> ShardMapCache:
        """The stream's shards, which are listed when they are needed."""
        return shard_map_cache(self._connection, self._stream, self._arn)

    def size_in_bytes(self, entry: KinesisEntry) -> int:
        """The size of the data and of the partition key in UTF-8.

        Raises:
            SluiceError: the entry is none, or its data are not bytes.
        """
        if not isinstance(entry, KinesisEntry):
            raise wrong_entry("kinesis", "an entry", entry, "KinesisEntry")
        data, key = entry.data, entry.partition_key
        if not isinstance(data, BYTES):
            raise wrong_entry("kinesis", "an entry with data", data, "bytes")
        if not isinstance(key, str):
            raise wrong_entry("kinesis", "an entry with a partition key", key, "str")
        return len(data) + utf8_length(key)

    def unpacked(self, entry: KinesisEntry) -> Sequence[KinesisEntry]:
        """The record as it was before it was compressed."""
        return (entry.restored(self.compression),)

    def send_part(self, entries: Sequence[KinesisEntry]) -> list[Refusal | str | None]:
        """Calls ``PutRecords`` once. For an accepted record it returns its shard."""
        answer = self.call(Records=PreparedParameter(entries, _PLACEHOLDER), **self._address)
        with self.call.reading():
            outcomes = outcomes_of(answer, "Records")
        refusals = self.call.refusals_in_order(entries, outcomes)
        return [refusal or outcome.shard_id for refusal, outcome in zip(refusals, outcomes, strict=True)]

    def put(
        self, entries: Sequence[KinesisEntry]
    ) -> tuple[SubmitResult[KinesisEntry], list[Refusal | str | None]]:
        """As `submit`. Also returns, for each record, its shard, or why it was refused."""
        answers = self.send_in_parts(entries)
        return self.call.result(entries, answers), answers
