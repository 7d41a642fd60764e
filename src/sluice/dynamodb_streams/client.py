"""DynamoDB Streams as a `sluice.source.logs.stream_log.StreamLog`, through the SDK's client.

Unlike Kinesis, the service does not report its lag, has no iterators by time, and may return empty pages
anywhere. So this log counts empty pages in its iterators.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, NamedTuple

from sluice.aws.calling.calls import Calls
from sluice.aws.wire.changes import ChangeRecord, changes_of
from sluice.dynamodb_streams.streams import TableRef
from sluice.errors import ServiceError
from sluice.instants import micros_from_datetime, micros_from_seconds, parse_instant
from sluice.source.logs.stream_log import IteratorStart, Page, StreamInfo, StreamLog
from sluice.source.model.splits import Split, SplitId

__all__ = ["EMPTY_PAGES_IN_RANGE", "LARGEST_PAGE", "RETENTION", "DynamoDbStreamsLog"]

LARGEST_PAGE: Final = 1_000
"""Maximum records in a page."""
RETENTION: Final = 24 * 3600.0
"""Seconds for which the service keeps records; users cannot change it."""

_TRIMMED: Final = "TrimmedDataAccessException"
EMPTY_PAGES_IN_RANGE: Final = 200
"""Empty pages in a row after which a task reads the last record of its range through a new iterator."""

_SIDE_BY_SIDE: Final = 16


class _Iterator(NamedTuple):
    """An iterator of this log.

    Attributes:
        text: the service's iterator.
        empty_pages: number of empty pages in a row.
    """

    text: str
    empty_pages: int = 0

    def __str__(self) -> str:
        return f"{self.empty_pages} {self.text}"

    @classmethod
    def parse(cls, text: str) -> _Iterator:
        empty_pages, _, iterator = text.partition(" ")
        return cls(iterator, int(empty_pages))


class DynamoDbStreamsLog(StreamLog):
    """Streams of tables of one account and region as a `StreamLog`. Thread-safe.

    Args:
        calls: of ``ListStreams``, ``DescribeStream``, ``GetShardIterator`` and ``GetRecords``.
        empty_pages: number of empty pages in a row after which an open shard counts as read to its tip.
            "It might take multiple calls to get to a portion of the shard that contains stream records";
            no page documents how many.
        arns: ARNs of known streams by table, the newest first. `describe` lists them again.
    """

    is_thread_safe: ClassVar[bool] = True
    split_name = "shard"
    seeks_by_time = False

    def __init__(
        self,
        calls: Calls,
        tables: Iterable[TableRef],
        *,
        empty_pages: int,
        arns: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._calls = calls
        self._given = {table.name: table.arn for table in tables}
        self._empty_pages = empty_pages
        self._lock = threading.Lock()
        self._arns = dict(arns or {})
        self._latest: dict[tuple[SplitId, int], str] = {}

    def for_planning(self) -> DynamoDbStreamsLog:
        """Returns a log for a process that plans batches; see `Calls.for_planning`."""
        calls = self._calls.for_planning("GetRecords", "GetShardIterator")
        tables = [TableRef(name, arn) for name, arn in self._given.items()]
        return DynamoDbStreamsLog(calls, tables, empty_pages=self._empty_pages, arns=self._arns)

    # --- StreamLog ------------------------------------------------------------------------------------

    def describe(self, stream: str) -> StreamInfo:
        """See `StreamLog.describe`. The label of a stream, the time at which it was enabled, identifies
        it.
        """
        self._forget_arns(stream)
        arn = self.arns_of(stream)[0]

        def read(answer: Mapping[str, Any]) -> StreamInfo:
            return StreamInfo(stream, _created(answer["StreamDescription"]), RETENTION)

        return self._calls.call("DescribeStream", stream, {"StreamArn": arn, "Limit": 1}, read)

    def list_splits(self, stream: str) -> Sequence[Split]:
        request: dict[str, Any] = {"StreamArn": self.arns_of(stream)[0]}
        splits: dict[SplitId, Split] = {}  # a shard that rolls over between two pages may be in both
        while True:
            shards, last = self._calls.call("DescribeStream", stream, request, _shards)
            splits |= {(split := _split(stream, shard)).id: split for shard in shards}
            if not last:
                return list(splits.values())
            request["ExclusiveStartShardId"] = last

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        """See `StreamLog.get_iterator`, and `start_at_latest`."""
        text = None
        if start.timestamp is not None:
            text = self._latest.pop((split, start.timestamp), None)
        if text is None:
            request: dict[str, str] = {"ShardIteratorType": start.kind}
            if start.sequence_number is not None:
                request["SequenceNumber"] = start.sequence_number
            text = self._iterator(split, request)
        return None if text is None else str(_Iterator(text))

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        here = _Iterator.parse(iterator)
        request = {"ShardIterator": here.text, "Limit": min(limit, LARGEST_PAGE)}
        return self._calls.call(
            "GetRecords",
            str(split),
            request,
            lambda answer: self._page(here, answer),
            recover=_raise_trimmed_as_expired,
        )

    def server_time(self) -> int:
        """See `StreamLog.server_time`. Adjusts the local clock by the service's answers."""
        return micros_from_seconds(self._calls.server_time())

    # --- more than a StreamLog ------------------------------------------------------------------------

    def start_at_latest(self, splits: Iterable[SplitId], instant: int) -> None:
        """Makes the first iterator of each split for this instant (microseconds) start at its newest record.

        Otherwise a new query would read hours of records only to skip them. `instant` is now, or a
        little earlier. Later iterators for it start at the oldest record, because records may have
        arrived.

        Raises:
            ServiceError: a call failed, and retries did not help.
        """

        def pin(split: SplitId) -> None:
            text = self._iterator(split, {"ShardIteratorType": "LATEST"})
            if text is not None:
                self._latest[split, instant] = text

        with ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="sluice-latest") as pool:
            list(pool.map(pin, splits))

    def arns_of(self, table: str) -> Sequence[str]:
        """Returns the ARNs of a table's streams of the last 24 hours, the newest first, or the given one.

        Raises:
            ServiceError: the table has no stream.
        """
        if (given := self._given.get(table)) is not None:
            return (given,)
        with self._lock:
            known = self._arns.get(table)
        if known is None:
            known = self._list_arns(table)
            with self._lock:
                self._arns[table] = known
        return known

    # --- inside ---------------------------------------------------------------------------------------

    def _page(self, here: _Iterator, answer: Mapping[str, Any]) -> Page:
        records: Sequence[ChangeRecord] = changes_of(answer)
        text = answer.get("NextShardIterator") or None
        empty_pages = 0 if records else here.empty_pages + 1
        behind, size = self._millis_behind(records, text, empty_pages), sum(record.size for record in records)
        following = None if text is None else str(_Iterator(text, empty_pages))
        return Page(records, following, behind, size)

    def _millis_behind(self, records: Sequence[ChangeRecord], text: str | None, empty_pages: int) -> int:
        """Returns the lag of a page in milliseconds. Only empty pages show that it has reached the tip."""
        if text is None or empty_pages >= self._empty_pages:
            return 0
        if not records:
            return 1
        return max(1, (self.server_time() - records[-1].arrival) // 1000)

    def _iterator(self, split: SplitId, request: Mapping[str, Any]) -> str | None:
        arns = self.arns_of(split.stream)
        for arn in arns:
            try:
                return self._calls.call(
                    "GetShardIterator",
                    str(split),
                    {"StreamArn": arn, "ShardId": split.shard, **request},
                    lambda answer: answer.get("ShardIterator") or None,
                    recover=_raise_trimmed_as_invalid,
                )
            except ServiceError as error:  # noqa: PERF203 - a request takes far longer
                # A batch that was logged before the stream was enabled again belongs to the previous
                # stream.
                if not error.missing or arn == arns[-1]:
                    raise
        return None

    def _forget_arns(self, table: str) -> None:
        with self._lock:
            self._arns.pop(table, None)

    def _list_arns(self, table: str) -> Sequence[str]:
        request: dict[str, Any] = {"TableName": table}
        arns: list[str] = []
        while True:
            found, last = self._calls.call("ListStreams", table, request, _streams)
            arns += found
            if not last:
                break
            request["ExclusiveStartStreamArn"] = last
        if not arns:
            raise ServiceError(
                f"ListStreams of {table}: the table has no stream, or does not exist: enable a stream for it "
                "(StreamSpecification with StreamEnabled)",
                operation="ListStreams",
                target=table,
                code="NoStream",
                missing=True,
            )
        return sorted(arns, key=lambda arn: arn.rpartition("/")[2], reverse=True)


def _streams(answer: Mapping[str, Any]) -> tuple[list[str], str | None]:
    return [stream["StreamArn"] for stream in answer["Streams"]], answer.get("LastEvaluatedStreamArn")


def _shards(answer: Mapping[str, Any]) -> tuple[Sequence[Mapping[str, Any]], str | None]:
    description = answer["StreamDescription"]
    return description.get("Shards") or (), description.get("LastEvaluatedShardId")


def _created(description: Mapping[str, Any]) -> int:
    """Returns when the stream was enabled, by its label or, if that is not a time, by its description."""
    try:
        return parse_instant(description["StreamLabel"])
    except ValueError:
        return micros_from_datetime(description["CreationRequestDateTime"])


def _split(stream: str, shard: Mapping[str, Any]) -> Split:
    numbers, parent = shard["SequenceNumberRange"], shard.get("ParentShardId")
    return Split(
        id=SplitId(stream, shard["ShardId"]),
        parents=(parent,) if parent else (),
        starting_sequence=numbers.get("StartingSequenceNumber") or "0",
        ending_sequence=numbers.get("EndingSequenceNumber"),
    )


def _raise_trimmed_as_invalid(error: ServiceError) -> None:
    """Marks the number as invalid: the reader then compares the oldest record to report what is lost."""
    error.invalid_argument = error.invalid_argument or error.code == _TRIMMED


def _raise_trimmed_as_expired(error: ServiceError) -> None:
    """Marks the iterator as expired, because its record has: a new iterator shows the loss."""
    error.expired_iterator = error.expired_iterator or error.code == _TRIMMED
