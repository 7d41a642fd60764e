"""Kinesis as a `sluice.source.stream_log.StreamLog`, through the SDK's client."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice.aws.calls import Calls
from sluice.aws.connection import ConnectionConfig
from sluice.aws.records import WireRecord
from sluice.aws.shards import list_shards
from sluice.instants import micros_from_datetime, micros_from_seconds, micros_to_datetime
from sluice.kinesis.options import SourceConfig
from sluice.retry import Backoff, Retrier
from sluice.source.splits import Split, SplitId
from sluice.source.stream_log import IteratorStart, Page, Record, StreamInfo

__all__ = ["KinesisLog", "kinesis_calls"]


def kinesis_calls(connection: ConnectionConfig, backoffs: Mapping[str, Backoff], **settings: Any) -> Calls:
    """Calls of Kinesis Data Streams.

    Args:
        backoffs: by the operation's name in the API. ``DescribeStreamSummary``, which has no options of its
            own in FLIP-128, is retried like ``ListShards``.
        settings: the other arguments of `Calls`.
    """
    shared = {"DescribeStreamSummary": backoffs["ListShards"]} if "ListShards" in backoffs else {}
    return Calls(connection, "kinesis", {**shared, **backoffs}, **settings)


class KinesisLog:
    """Reads streams of one account and region.

    Plain data with methods: it may be pickled, and used from several threads. SDK clients and what is
    known of the endpoint belong to the process.

    Args:
        connection: how to reach the service.
        streams: the streams' names, each with its ARN where calls are to use that.
        backoffs: by the operation's name in the API: ``GetRecords``, ``GetShardIterator``, ``ListShards``.
        retrier: its sleep is where a stopping task gets out.
        clock: local time in seconds since the epoch.
        is_known: the endpoint has answered another process of the query: it is not given up early.
    """

    def __init__(  # noqa: PLR0913 - the last three are for tests and for tasks
        self,
        connection: ConnectionConfig,
        streams: Mapping[str, str | None],
        backoffs: Mapping[str, Backoff],
        *,
        retrier: Retrier | None = None,
        clock: Callable[[], float] = time.time,
        is_known: bool = False,
    ) -> None:
        self._calls = kinesis_calls(connection, backoffs, retrier=retrier, clock=clock, is_known=is_known)
        self._streams = dict(streams)

    @classmethod
    def of(
        cls, config: SourceConfig, *, retrier: Retrier | None = None, is_known: bool = False
    ) -> KinesisLog:
        """The log of all streams of a source."""
        streams = {stream.name: stream.arn for stream in config.streams}
        return cls(config.connection, streams, config.backoffs, retrier=retrier, is_known=is_known)

    def describe(self, stream: str) -> StreamInfo:
        """See `StreamLog.describe`. Retried with the backoff of ``ListShards``."""
        return self._calls.call(
            "DescribeStreamSummary", stream, self._address(stream), lambda answer: _info(stream, answer)
        )

    def list_splits(self, stream: str) -> Sequence[Split]:
        """See `StreamLog.list_splits`."""
        return list_shards(self._calls, stream, self._address(stream), lambda shard: _split(stream, shard))

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        """See `StreamLog.get_iterator`."""
        request = self._address(split.stream) | {"ShardId": split.shard, "ShardIteratorType": start.kind}
        if start.sequence_number is not None:
            request["StartingSequenceNumber"] = start.sequence_number
        if start.timestamp is not None:
            request["Timestamp"] = micros_to_datetime(start.timestamp)
        return self._calls.call(
            "GetShardIterator", str(split), request, lambda answer: answer.get("ShardIterator") or None
        )

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """See `StreamLog.get_records`."""
        request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        arn = self._streams.get(split.stream)
        if arn is not None:
            request["StreamARN"] = arn
        return self._calls.call("GetRecords", str(split), request, _page)

    def server_time(self) -> int:
        """See `StreamLog.server_time`: the local clock, unless answers showed that it is off."""
        return micros_from_seconds(self._calls.server_time())

    def _address(self, stream: str) -> dict[str, Any]:
        arn = self._streams.get(stream)
        return {"StreamName": stream} if arn is None else {"StreamARN": arn}


def _info(stream: str, answer: Mapping[str, Any]) -> StreamInfo:
    summary = answer["StreamDescriptionSummary"]
    return StreamInfo(
        name=stream,
        created=micros_from_datetime(summary["StreamCreationTimestamp"]),
        retention=summary["RetentionPeriodHours"] * 3600.0,
    )


def _page(answer: Mapping[str, Any]) -> Page:
    records = answer["Records"]
    if records and not isinstance(records[0], WireRecord):  # read by the SDK
        records = [
            Record(
                record["SequenceNumber"],
                micros_from_datetime(record["ApproximateArrivalTimestamp"]),
                record["PartitionKey"],
                record["Data"],
            )
            for record in records
        ]
    return Page(
        records=records,
        next_iterator=answer.get("NextShardIterator") or None,
        millis_behind=answer["MillisBehindLatest"],
    )


def _split(stream: str, shard: Mapping[str, Any]) -> Split:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    keys, numbers = shard["HashKeyRange"], shard["SequenceNumberRange"]
    return Split(
        id=SplitId(stream, shard["ShardId"]),
        parents=tuple(parent for parent in parents if parent),
        starting_sequence=numbers["StartingSequenceNumber"],
        ending_sequence=numbers.get("EndingSequenceNumber"),
        hash_range=(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
    )
