"""Queries of an earlier release, killed in the middle of a batch, resume from the checkpoints they left.

The checkpoints, the streams and the bucket are recordings; ``fixtures/record_checkpoints.py`` says how they
were made. They stay as they are: a release that cannot resume from one breaks the queries of its users.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from pyspark.sql import DataFrame, SparkSession

from integration.support.fan_out import wait_for_no_agents
from integration.support.queries import logged_offsets, start, wait_until
from integration.support.recorded_kinesis import RecordedKinesis, RecordedRecord, RecordedStream
from integration.support.s3 import Lake
from integration.support.servers import Server
from integration.support.spark import stop_queries

RECORDINGS = Path(__file__).with_name("fixtures") / "checkpoints"
FAN_OUT = ("efo", "reshard-efo")
POLLING = ("polling", "latest", "available-now", "reshard")
TASKS_ONLY = 77
"""Tasks that poll ask for pages of this size; planning never does."""
UNREAD = "before"
"""What a record says that lies before the start of its query."""
KEYS = {"after", "next", "arrival", "idle", "quiet", "at", "pinned", "closed"}
"""All keys of a position that the recorded release writes."""
PROOFS_OF_LOSS = {"expiry", "listed"}
"""Keys of an offset that later releases added."""


class Line(NamedTuple):
    """A row of the source."""

    shard: str
    sequence_number: int
    sub: int
    data: str


@dataclass(frozen=True)
class Recording:
    directory: Path
    query: Mapping[str, Any]
    stream: RecordedStream

    @classmethod
    def load(cls, name: str) -> Recording:
        directory = RECORDINGS / name
        query = json.loads((directory / "query.json").read_text())
        return cls(directory, query, RecordedStream.load(directory))

    @property
    def in_flight(self) -> int:
        """The batch that is in the offset log and not in the commit log."""
        (batch,) = logged(self.directory / "checkpoint", "offsets") - logged(
            self.directory / "checkpoint", "commits"
        )
        return batch

    def install(self, directory: Path) -> Path:
        """A copy of the checkpoint, from which a query resumes."""
        return Path(shutil.copytree(self.directory / "checkpoint", directory / "checkpoint"))

    def source(self, spark: SparkSession, kinesis: RecordedKinesis, **more: str) -> DataFrame:
        options = {**self.query["options"], "endpointUrl": kinesis.endpoint, **more}
        return spark.readStream.format("kinesis-efo").options(**options).load()

    def rows(self) -> Mapping[int, list[Line]]:
        """What the killed query had read, by batch."""
        found: dict[int, list[Line]] = defaultdict(list)
        for line in (self.directory / "rows.jsonl").read_text().splitlines():
            batch, shard, number, sub, data = json.loads(line)
            found[batch].append(Line(shard, int(number), sub, data))
        return found

    def expected(self) -> list[Line]:
        """All rows from the query's start on, as the vendor's library unpacks the records."""
        lines = (line for record in self.stream.records for line in unpacked(record))
        return [line for line in lines if not line.data.startswith(UNREAD)]


def unpacked(record: RecordedRecord) -> Iterator[Line]:
    wire = record.to_wire()
    entry = {
        "kinesisSchemaVersion": "1.0",
        "sequenceNumber": wire["SequenceNumber"],
        "partitionKey": wire["PartitionKey"],
        "approximateArrivalTimestamp": wire["ApproximateArrivalTimestamp"],
        "data": wire["Data"],
    }
    for sub, user_record in enumerate(iter_deaggregate_records([{"kinesis": entry}])):
        data = base64.b64decode(user_record["kinesis"]["data"]).decode()
        yield Line(record.shard, int(record.sequence_number), sub, data)


def logged(checkpoint: Path, log: str) -> set[int]:
    """The batches that one of Spark's logs holds."""
    return {int(file.name) for file in (checkpoint / log).glob("[0-9]*")}


def read_by(rows: Iterable[Any]) -> list[Line]:
    return [
        Line(row.shardId, int(row.sequenceNumber), row.subSequenceNumber, bytes(row.data).decode())
        for row in rows
    ]


def by_shard(rows: Iterable[Line]) -> Mapping[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for row in rows:
        found[row.shard].append(row)
    return found


@pytest.fixture(autouse=True)
def _no_agent_is_left(spark: SparkSession) -> Iterator[None]:
    yield
    stop_queries(spark)
    wait_for_no_agents()


# --- the source ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*POLLING, *FAN_OUT])
def test_a_query_resumes_from_its_checkpoint(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The batch that was in progress comes again with the range that is logged and the rows that it had; no
    batch before it does. All batches together hold each record once, in order, parents before children.
    """
    recording = Recording.load(name)
    had, expected = recording.rows(), recording.expected()
    done = [row for batch in sorted(had) if batch < recording.in_flight for row in had[batch]]
    checkpoint = recording.install(tmp_path)
    with RecordedKinesis(recording.stream).running() as kinesis:
        frame = recording.source(spark, kinesis, getRecordsLimit=str(TASKS_ONLY))
        run = start(frame, str(checkpoint), **recording.query["trigger"])
        run.wait_for_rows(len(expected) - len(done))
        if name in FAN_OUT:  # on a slow machine, all may have been polled before
            run.wait_until(lambda: "SubscribeToShard" in dict(kinesis.calls), "a subscription")
        run.stop()
        wait_for_no_agents()

    assert min(run.batches) == recording.in_flight
    again = read_by(run.batches[recording.in_flight])
    assert by_shard(again) == by_shard(had[recording.in_flight])
    rows = [*done, *read_by(run.rows)]
    assert Counter(rows) == Counter(expected)
    assert all(each == sorted(each) for each in by_shard(rows).values())
    check_lineage(rows, recording.stream)
    check_log(recording, checkpoint)
    if name in FAN_OUT:
        check_fan_out(recording, kinesis)
    print(f"\n{name}: batch {recording.in_flight} again with {len(again)} rows, {len(rows)} rows in all")


def check_lineage(rows: Sequence[Line], stream: RecordedStream) -> None:
    """Every row of a parent comes before every row of its children."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        places[row.shard].append(place)
    for shard in stream.shards:
        for parent in (shard.get("ParentShardId"), shard.get("AdjacentParentShardId")):
            if parent in places and shard["ShardId"] in places:
                assert max(places[parent]) < min(places[shard["ShardId"]])


def check_log(recording: Recording, checkpoint: Path) -> None:
    """Old entries stay; new ones have the same keys, and those that prove a loss.

    Besides, an end says where its batch starts (``start``), if children open in it.
    """
    recorded = recording.directory / "checkpoint" / "offsets"
    for file in recorded.iterdir():
        assert (checkpoint / "offsets" / file.name).read_bytes() == file.read_bytes()
    offsets = logged_offsets(str(checkpoint))
    before = offsets[recording.in_flight]
    after = [offset for batch, offset in offsets.items() if batch > recording.in_flight]
    assert after
    for offset in after:
        assert offset.keys() - PROOFS_OF_LOSS - {"start"} == before.keys() - {"start"}
        assert offset.keys() >= PROOFS_OF_LOSS
        assert offset["created"] == before["created"]
        assert offset.get("consumers") == before.get("consumers")
        assert {key for position in positions(offset) for key in position} <= KEYS


def positions(offset: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for shards in offset["streams"].values():
        yield from shards.values()


def check_fan_out(recording: Recording, kinesis: RecordedKinesis) -> None:
    """Records are pushed by the consumer of the recording; as the query's own, it has gone with the query."""
    assert recording.stream.consumers
    assert kinesis.consumers == []
    operations = Counter(operation for operation, _ in kinesis.calls)
    assert operations["SubscribeToShard"] >= 1
    assert operations["RegisterStreamConsumer"] == 0
    if recording.query["options"].get("subscribeToShardFallback") == "fail":
        polled = [request for operation, request in kinesis.calls if operation == "GetRecords"]
        assert TASKS_ONLY not in [request.get("Limit") for request in polled]


def test_a_batch_may_start_inside_an_aggregated_record(spark: SparkSession, tmp_path: Path) -> None:
    """A position with ``sub``, which the recorded release accepts and never logs, is written into a recorded
    checkpoint: the batch that was in progress comes again without the rows that lie before it.
    """
    recording = Recording.load("polling")
    checkpoint = recording.install(tmp_path)
    had = recording.rows()[recording.in_flight]
    inside = next(row for row in had if row.sub == 1)
    number = next(
        each.sequence_number
        for each in recording.stream.records
        if int(each.sequence_number) == inside.sequence_number
    )
    file = checkpoint / "offsets" / str(recording.in_flight - 1)
    version, metadata, text = file.read_text().splitlines()
    offset = json.loads(text)
    offset["streams"][recording.stream.name][inside.shard] = {"after": number, "sub": inside.sub}
    file.write_text("\n".join([version, metadata, json.dumps(offset)]))

    with RecordedKinesis(recording.stream).running() as kinesis:
        run = start(recording.source(spark, kinesis), str(checkpoint))
        run.wait_until(lambda: recording.in_flight in run.batches, "the batch that was under way")
        run.stop()

    left = [row for row in had if row.shard != inside.shard or row > inside]
    assert 0 < len(left) < len(had)
    assert by_shard(read_by(run.batches[recording.in_flight])) == by_shard(left)


# --- S3 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bucket:
    """What a killed query had left in its bucket."""

    objects: Mapping[str, str]  # key to content
    uploads: Sequence[Mapping[str, str]]  # key, upload id and body of each upload that was not completed

    @classmethod
    def load(cls, recording: Recording) -> Bucket:
        return cls(**json.loads((recording.directory / "bucket.json").read_text()))

    def fill(self, lake: Lake) -> None:
        """Puts all of it into a bucket; uploads get new ids, by which notes name them from then on."""
        texts = dict(self.objects)
        for each in self.uploads:
            target = {"Bucket": lake.bucket, "Key": each["key"]}
            upload = lake.client.create_multipart_upload(**target)["UploadId"]
            lake.client.upload_part(**target, UploadId=upload, PartNumber=1, Body=each["body"].encode())
            texts = {key: text.replace(each["upload"], upload) for key, text in texts.items()}
        for key, text in texts.items():
            lake.client.put_object(Bucket=lake.bucket, Key=key, Body=text.encode())

    def manifests(self) -> dict[str, str]:
        return {key: text for key, text in self.objects.items() if is_manifest(key)}

    def files(self, batch: int) -> dict[str, str]:
        """What the tasks of a batch had written, completed or not."""
        written = {**self.objects, **{each["key"]: each["body"] for each in self.uploads}}
        return {
            key: text for key, text in written.items() if f"_{batch:020}_" in key and "/_sluice/" not in key
        }


def is_manifest(key: str) -> bool:
    return "/_sluice/" in key and "/pending/" not in key


def lines_of(files: Mapping[str, str]) -> list[Line]:
    """The rows of files in JSON lines; the shard is a partition."""
    return [
        Line(
            key.partition("shardId=")[2].partition("/")[0],
            int(row["sequenceNumber"]),
            row["subSequenceNumber"],
            row["data"],
        )
        for key, text in files.items()
        for row in map(json.loads, text.splitlines())
    ]


def committed(lake: Lake) -> list[Line]:
    return lines_of({key: lake.get(key).decode() for key in lake.files()})


@pytest.mark.parametrize(
    ("name", "is_sealed"), [("s3-prepared", False), ("s3-half-completed", False), ("s3-sealed", True)]
)
def test_a_query_to_s3_resumes_from_its_checkpoint(
    spark: SparkSession, moto: Server, tmp_path: Path, name: str, *, is_sealed: bool
) -> None:
    """An epoch that has its manifest is not written again; without one, its files are removed and the same
    rows are committed. Each row is there once, and nothing else is left in the bucket.
    """
    recording = Recording.load(name)
    bucket, expected = Bucket.load(recording), Counter(recording.expected())
    left = bucket.files(recording.in_flight)
    assert left
    assert any(f"{recording.in_flight:020}.json" in key for key in bucket.manifests()) == is_sealed
    lake = Lake(moto.endpoint)
    bucket.fill(lake)
    checkpoint = recording.install(tmp_path)
    with RecordedKinesis(recording.stream).running() as kinesis:
        query = (
            recording.source(spark, kinesis)
            .selectExpr(*recording.query["columns"])
            .writeStream.format("async-sink")
            .options(**lake.options(**recording.query["sink"]))
            .option("checkpointLocation", str(checkpoint))
            .trigger(**recording.query["trigger"])
            .start()
        )

        def is_done() -> bool:
            if (error := query.exception()) is not None:
                raise error
            is_settled = logged(checkpoint, "commits") == logged(checkpoint, "offsets")
            return is_settled and len(committed(lake)) >= expected.total()

        wait_until(is_done, "all rows")
        query.stop()

    assert Counter(committed(lake)) == expected
    lake.check_nothing_else()
    assert (
        bucket.manifests().items()
        <= {key: lake.get(key).decode() for key in lake.listed() if is_manifest(key)}.items()
    )
    manifests = {manifest["batch"]: manifest for manifest in lake.manifests()}
    assert {manifest["query"] for manifest in manifests.values()} == {str(query.id)}
    files = [f"events/{each['path']}" for each in manifests[recording.in_flight]["files"]]
    again = {key: lake.get(key).decode() for key in files}
    assert sorted(lines_of(again)) == sorted(lines_of(left))
    assert (again == left) == is_sealed
    assert manifests[recording.in_flight + 1]["run"] == str(query.runId)
    print(f"\n{name}: {len(left)} files of batch {recording.in_flight} were there, {len(manifests)} epochs")
