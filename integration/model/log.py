"""The model as the log behind the source, in process.

Errors become `ServiceError` by the library's own translation, so their attributes are those that the real
client's errors have. Retries are the real client's too, and wait by the model's clock: what a query pays for
throttling shows in its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from botocore.exceptions import ClientError, ConnectionClosedError

from integration.model.clock import SECOND
from integration.model.errors import LOST_ANSWER, ModelError
from integration.model.service import KinesisModel
from sluice.aws.errors import translate
from sluice.errors import ServiceError
from sluice.retry import Backoff, Retrier
from sluice.source.logs.stream_log import IteratorStart, Page, Record, StreamInfo, StreamLog
from sluice.source.model.splits import Split, SplitId

T = TypeVar("T")

BACKOFFS: Final[Mapping[str, Backoff]] = {
    "DescribeStreamSummary": Backoff(10, 1.0, 5.0, 1.5),
    "GetRecords": Backoff(3, 0.3, 1.0, 1.5),
    "GetShardIterator": Backoff(3, 0.3, 1.0, 1.5),
    "ListShards": Backoff(10, 1.0, 5.0, 1.5),
}
"""Those of the source's options where the user gives none (FLIP-128's)."""

NO_RETRIES: Final[Mapping[str, Backoff]] = dict.fromkeys(BACKOFFS, Backoff(0, 0.0, 0.0, 1.0))
"""Each refusal reaches the caller."""

_TARGET: Final = "http://model"


class ModelLog(StreamLog):
    """Implements `sluice.source.StreamLog`, and does to a stream what tests do to `MemoryLog`.

    `model`: the service; `backoffs`: how each operation is retried; `skew`: seconds by which `server_time` is
    ahead of the service's clock, because no answer has shown the local clock to be off.
    """

    def __init__(
        self,
        model: KinesisModel,
        *,
        backoffs: Mapping[str, Backoff] = BACKOFFS,
        skew: float = 0.0,
        jitter: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self.model = model
        self.skew = skew
        # operation and code to how often a call failed so, retried or not
        self.failures: Counter[tuple[str, str]] = Counter()
        self.limits: list[int] = []  # the limit of every GetRecords, in order
        self._backoffs = backoffs
        self._retrier = Retrier(model.clock.sleep, jitter)

    def describe(self, stream: str) -> StreamInfo:
        answer = self._call("DescribeStreamSummary", stream, {"StreamName": stream})[
            "StreamDescriptionSummary"
        ]
        created = round(answer["StreamCreationTimestamp"] * SECOND)
        return StreamInfo(stream, created, answer["RetentionPeriodHours"] * 3600.0)

    def list_splits(self, stream: str) -> Sequence[Split]:
        request: dict[str, Any] = {"StreamName": stream}
        shards: list[Split] = []
        while True:
            answer = self._call("ListShards", stream, request)
            shards += [_split(stream, shard) for shard in answer["Shards"]]
            if "NextToken" not in answer:
                return shards
            request = {"NextToken": answer["NextToken"]}

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        request: dict[str, Any] = {
            "StreamName": split.stream,
            "ShardId": split.shard,
            "ShardIteratorType": start.kind,
        }
        if start.sequence_number is not None:
            request["StartingSequenceNumber"] = start.sequence_number
        if start.timestamp is not None:
            request["Timestamp"] = start.timestamp / SECOND
        iterator: str = self._call("GetShardIterator", str(split), request)["ShardIterator"]
        return iterator

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        self.limits.append(limit)
        request = {"ShardIterator": iterator, "Limit": limit}
        page = self._retry("GetRecords", str(split), lambda: self.model.get_page(request))
        size = sum(len(record.data) for record in page.records)
        return Page(list(map(Record._make, page.records)), page.next_iterator, page.millis_behind, size)

    def server_time(self) -> int:
        return self.model.clock.now() + round(self.skew * SECOND)

    # --- what producers, operators and time do ---

    def create(self, stream: str, shards: int = 1) -> list[SplitId]:
        return [SplitId(stream, shard) for shard in self.model.create(stream, shards)]

    def put(self, stream: str, key: str, data: bytes = b"x", *, arrival: int | None = None) -> Record:
        return Record._make(self.model.put(stream, key, data, arrival=arrival)[1])

    def split(self, split: SplitId) -> list[SplitId]:
        return [SplitId(split.stream, shard) for shard in self.model.split(*split)]

    def merge(self, split: SplitId, other: SplitId) -> SplitId:
        return SplitId(split.stream, self.model.merge(*split, other.shard))

    def delete(self, stream: str) -> None:
        self.model.delete(stream)

    def trim(self, split: SplitId, count: int) -> None:
        self.model.trim(*split, count)

    def expire(self, split: SplitId) -> None:
        self.model.expire_shard(*split)

    def expire_iterators(self) -> None:
        self.model.expire_iterators()

    @property
    def shards(self) -> dict[SplitId, Split]:
        """All shards that have not expired, whether a listing shows them or not."""
        return {
            SplitId(shard.stream, shard.id): Split(
                SplitId(shard.stream, shard.id),
                shard.parents,
                shard.starting_number,
                shard.ending_number,
                shard.hash_range,
            )
            for shard in self.model.shards()
        }

    def records(self, split: SplitId) -> list[Record]:
        """The records of a shard that have not expired."""
        return [
            Record(record.sequence_number, record.arrival, record.partition_key, record.data)
            for record in self.model.oracle.readable(split.stream)
            if record.shard == split.shard
        ]

    @property
    def now(self) -> int:
        """The time by the service's clock (microseconds)."""
        return self.model.clock.now()

    @property
    def calls(self) -> Counter[str]:
        """How often each operation was called, retries included."""
        return self.model.calls

    def monotonic(self) -> float:
        """Seconds since some moment, as the reader's own clock has them."""
        return self.model.clock.elapsed()

    def set_clock(self, seconds: float) -> None:
        """Sets the time of day forward, or back where `seconds` is negative."""
        self.model.clock.step(seconds)

    def sleep(self, seconds: float) -> None:
        """What a reader does between two calls."""
        self.model.clock.sleep(seconds)

    def pass_time(self, seconds: float) -> None:
        """Time passes without a reader."""
        self.model.clock.advance(seconds)

    # --- inside ---

    def _call(self, operation: str, target: str, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._retry(operation, target, lambda: self.model.call(operation, request))

    def _retry(self, operation: str, target: str, call: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return call()
            except ModelError as error:
                self.failures[operation, error.code] += 1
                problem = service_error(error, operation, target)
            raise problem

        return self._retrier.call(self._backoffs[operation], attempt)


def service_error(error: ModelError, operation: str, target: str) -> ServiceError:
    """What the library makes of an error of the model."""
    return translate(_sdk_error(error, operation), operation=operation, target=target, endpoint=None)


def _sdk_error(error: ModelError, operation: str) -> Exception:
    if error.code == LOST_ANSWER:
        return ConnectionClosedError(endpoint_url=_TARGET)
    return ClientError(
        {
            "Error": {"Code": error.code, "Message": error.message},
            "ResponseMetadata": {
                "HTTPStatusCode": error.status,
                "RequestId": "",
                "HostId": "",
                "HTTPHeaders": {},
                "RetryAttempts": 0,
            },
        },
        operation,
    )


def _split(stream: str, shard: Mapping[str, Any]) -> Split:
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    keys, numbers = shard["HashKeyRange"], shard["SequenceNumberRange"]
    return Split(
        SplitId(stream, shard["ShardId"]),
        tuple(parent for parent in parents if parent),
        numbers["StartingSequenceNumber"],
        numbers.get("EndingSequenceNumber"),
        (int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
    )
