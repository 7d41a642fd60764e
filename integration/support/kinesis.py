"""What tests and the demo do to streams from outside: make them, fill them, reshard them, read them back.

Plain boto3 and none of the library's code, so that the two check one another.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef, ShardTypeDef

REGION = "us-east-1"
WAIT = 180.0
# Between two looks at a stream (seconds): the service lets an account look 20 times a second.
POLL = 0.2
PUT_AT_ONCE = 500


class Stored(NamedTuple):
    shard: str
    sequence_number: int
    partition_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """Where a record that was put has gone."""

    shard: str
    sequence_number: str


def kinesis_client(endpoint: str, region: str = REGION) -> KinesisClient:
    """A client of an emulator; what credentials it has does not matter there."""
    return boto3.session.Session().client(
        "kinesis",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106 - emulators take anything
        config=Config(connect_timeout=30, read_timeout=120, retries={"total_max_attempts": 5}),
    )


class Streams:
    """The streams of one server, in one region."""

    def __init__(self, endpoint: str, *, region: str = REGION) -> None:
        self.endpoint = endpoint
        self.client = kinesis_client(endpoint, region)

    def create(self, shards: int = 1, *, name: str | None = None) -> str:
        """A new stream, ACTIVE when this returns. Its name is made up where none is given."""
        name = name or f"stream-{uuid.uuid4().hex[:8]}"
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.wait_active(name)
        return name

    def delete(self, stream: str) -> None:
        """Gone when this returns."""
        self.client.delete_stream(StreamName=stream, EnforceConsumerDeletion=True)
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                self.client.describe_stream_summary(StreamName=stream)
            except self.client.exceptions.ResourceNotFoundException:
                return
            time.sleep(POLL)
        raise TimeoutError(f"{stream} is still there")

    def recreate(self, stream: str, shards: int = 1) -> None:
        """Deletes the stream and makes one of the same name."""
        self.delete(stream)
        self.create(shards, name=stream)

    def wait_active(self, stream: str) -> None:
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            summary = self.client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
            time.sleep(POLL)
        raise TimeoutError(f"{stream} does not become ACTIVE")

    def put(self, stream: str, records: Iterable[tuple[str, bytes]]) -> list[Put]:
        """Puts (partition key, data) pairs, in order, and fails when one is refused."""
        return self._put(stream, ({"PartitionKey": key, "Data": data} for key, data in records))

    def put_to_shard(self, stream: str, shard: str, data: Sequence[bytes]) -> list[Put]:
        """Puts `data` to one open shard, for any partition key (``"key"``)."""
        first = self._hash_range(stream, shard)[0]
        return self._put(
            stream, ({"PartitionKey": "key", "ExplicitHashKey": str(first), "Data": each} for each in data)
        )

    def _put(self, stream: str, entries: Iterable[PutRecordsRequestEntryTypeDef]) -> list[Put]:
        placed: list[Put] = []
        for chunk in _chunks(entries, PUT_AT_ONCE):
            answer = self.client.put_records(StreamName=stream, Records=chunk)
            if refused := answer["FailedRecordCount"]:
                raise RuntimeError(f"{refused} of {len(chunk)} records refused by {stream}")
            placed += [Put(record["ShardId"], record["SequenceNumber"]) for record in answer["Records"]]
        return placed

    def shards(self, stream: str) -> list[ShardTypeDef]:
        """All shards that the server lists, closed ones included, in the order of their ids."""
        found: list[ShardTypeDef] = []
        arguments: dict[str, Any] = {"StreamName": stream}
        while True:
            answer = self.client.list_shards(**arguments)
            found += answer["Shards"]
            if not answer.get("NextToken"):
                return sorted(found, key=lambda shard: shard["ShardId"])
            arguments = {"NextToken": answer["NextToken"]}

    def open_shards(self, stream: str) -> list[str]:
        return [
            shard["ShardId"]
            for shard in self.shards(stream)
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]

    def _hash_range(self, stream: str, shard: str) -> tuple[int, int]:
        keys = next(each for each in self.shards(stream) if each["ShardId"] == shard)["HashKeyRange"]
        return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])

    def split(self, stream: str, shard: str) -> None:
        """Splits a shard in the middle; the children are there when this returns."""
        first, last = self._hash_range(stream, shard)
        middle = (first + last + 1) // 2
        self.client.split_shard(StreamName=stream, ShardToSplit=shard, NewStartingHashKey=str(middle))
        self.wait_active(stream)

    def merge(self, stream: str, shard: str, adjacent: str) -> None:
        """Merges two neighbours; the child is there when this returns."""
        self.client.merge_shards(StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=adjacent)
        self.wait_active(stream)

    def update_shard_count(self, stream: str, shards: int) -> None:
        self.client.update_shard_count(
            StreamName=stream, TargetShardCount=shards, ScalingType="UNIFORM_SCALING"
        )
        self.wait_active(stream)

    def read(self, stream: str) -> list[Stored]:
        """Every record the stream holds, shard by shard, each in sequence order."""
        ids = [shard["ShardId"] for shard in self.shards(stream)]
        return [record for shard in ids for record in self.read_shard(stream, shard)]

    def read_shard(self, stream: str, shard: str) -> Iterator[Stored]:
        answer = self.client.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )
        iterator = answer.get("ShardIterator")
        while iterator:
            page = self.client.get_records(ShardIterator=iterator, Limit=10_000)
            for record in page["Records"]:
                yield Stored(shard, int(record["SequenceNumber"]), record["PartitionKey"], record["Data"])
            iterator = page.get("NextShardIterator")
            if not page["Records"] and not page["MillisBehindLatest"]:
                return


def _chunks(
    entries: Iterable[PutRecordsRequestEntryTypeDef], size: int
) -> Iterator[list[PutRecordsRequestEntryTypeDef]]:
    chunk: list[PutRecordsRequestEntryTypeDef] = []
    for entry in entries:
        chunk.append(entry)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
