"""Kinesis as a `sluice.source.logs.stream_log.StreamLog`, through the SDK's client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from sluice.aws.calling.calls import Calls
from sluice.aws.names.shards import describe_stream, list_shards
from sluice.aws.wire.pages import data_size
from sluice.aws.wire.records import WireRecord
from sluice.aws.wire.request_bodies import exact_time
from sluice.errors import ServiceError
from sluice.instants import (
    MICROS_PER_SECOND,
    micros_from_datetime,
    micros_from_seconds,
)
from sluice.kinesis.options.config import SourceConfig
from sluice.retry import Retrier
from sluice.source.logs.stream_log import IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import Split, SplitId

__all__ = ["KinesisLog", "answer_size", "kinesis_calls"]


def kinesis_calls(
    config: SourceConfig, *, retrier: Retrier | None = None, is_endpoint_known: bool = False
) -> Calls:
    """Calls Kinesis Data Streams as a source's options say.

    FLIP-128 has no options for ``DescribeStreamSummary``: it is retried like ``ListShards``.

    Args:
        config: the options of the source.
        retrier, is_endpoint_known: see `Calls`.
    """
    backoffs = {**config.backoffs, "DescribeStreamSummary": config.backoffs["ListShards"]}
    return Calls(
        config.connection, "kinesis", backoffs, retrier or Retrier(), is_endpoint_known=is_endpoint_known
    )


_NEAR_NOW: Final = 2 * MICROS_PER_SECOND
"""How old an instant may be that the service still rejects as a future one (microseconds)."""


class KinesisLog(StreamLog):
    """Streams of one account and region as a `StreamLog`. May be pickled, and used from several threads.

    Args:
        calls: of ``DescribeStreamSummary``, ``ListShards``, ``GetShardIterator`` and ``GetRecords``.
        stream_arns: stream's name to its ARN; None: calls address the stream by its name.
        figures: count reads that were refused or repeated.
        read_page: makes a page from an answer to ``GetRecords``. If it raises a retryable SluiceError, the
            call is repeated.
    """

    is_thread_safe: ClassVar[bool] = True
    split_name = "shard"
    # The service sorts them. Checking each record would take as long as reading it.
    pages_are_sorted = True

    def __init__(
        self,
        calls: Calls,
        stream_arns: Mapping[str, str | None],
        figures: ReadFigures | None = None,
        read_page: Callable[[Mapping[str, Any]], Page] | None = None,
    ) -> None:
        self._calls = calls
        self._figures = figures
        self._stream_arns = dict(stream_arns)
        self._read_page = read_page or _page

    @classmethod
    def of(
        cls,
        config: SourceConfig,
        *,
        retrier: Retrier | None = None,
        is_endpoint_known: bool = False,
        figures: ReadFigures | None = None,
        read_page: Callable[[Mapping[str, Any]], Page] | None = None,
    ) -> KinesisLog:
        """The log of all streams of a source; see `kinesis_calls`."""
        calls = kinesis_calls(config, retrier=retrier, is_endpoint_known=is_endpoint_known)
        return cls(calls, {stream.name: stream.arn for stream in config.streams}, figures, read_page)

    def for_planning(self) -> KinesisLog:
        """The same for a process that plans batches; see `Calls.for_planning`."""
        calls = self._calls.for_planning("GetRecords", "GetShardIterator")
        return KinesisLog(calls, self._stream_arns, self._figures, self._read_page)

    def describe(self, stream: str) -> StreamInfo:
        """See `StreamLog.describe`. Retried with the backoff of ``ListShards``."""
        return describe_stream(
            self._calls, stream, self._address(stream), lambda answer: _info(stream, answer)
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
            request["Timestamp"] = exact_time(start.timestamp)

        def learn_clock(error: ServiceError) -> None:
            """If the service calls a time near now later than its own, waits for the service's clock."""
            instant = start.timestamp
            if error.invalid_argument and instant is not None and instant > self.server_time() - _NEAR_NOW:
                self._calls.record_future(instant / MICROS_PER_SECOND)
                error.retryable = True

        return self._calls.call(
            "GetShardIterator",
            str(split),
            request,
            lambda answer: answer.get("ShardIterator") or None,
            recover=learn_clock,
        )

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        """See `StreamLog.get_records`."""
        request: dict[str, Any] = {"ShardIterator": iterator, "Limit": limit}
        arn = self._stream_arns.get(split.stream)
        if arn is not None:
            request["StreamARN"] = arn
        if self._figures is None:
            return self._calls.call("GetRecords", str(split), request, self._read_page)
        failures: list[ServiceError] = []
        is_over = True
        try:
            page = self._calls.call(
                "GetRecords", str(split), request, self._read_page, recover=failures.append
            )
            is_over = False
        finally:  # if the last failed attempt ended the call, it was not repeated
            refused = sum(error.throttling for error in failures)
            self._figures.count_call(split, refused=refused, retries=len(failures) - is_over)
        return page

    def server_time(self) -> int:
        """See `StreamLog.server_time`: the local clock, set to the service's by what its answers say."""
        return micros_from_seconds(self._calls.server_time())

    def _address(self, stream: str) -> dict[str, Any]:
        arn = self._stream_arns.get(stream)
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
    if isinstance(records, list) and records and not isinstance(records[0], WireRecord):  # read by the SDK
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
        size=answer_size(answer, len(records)),
    )


def answer_size(answer: Mapping[str, Any], records: int) -> int:
    """Bytes of data of a page with `records` records, about."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    length = headers.get("content-length", "")
    return data_size(
        int(length) if length.isdigit() else 0,
        records,
        is_cbor="cbor" in headers.get("content-type", ""),
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
