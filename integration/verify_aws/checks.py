"""The checks, each end to end: rows in, rows out as the service's own client reads them back."""

from __future__ import annotations

import gzip
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

import sluice
from integration.support.drivers import Driver
from integration.verify_aws.job import RANGE, Job
from integration.verify_aws.resources import Account

_ROWS: Final = 3_000  # of each check of a destination
_THROTTLED_ROWS: Final = 10_000  # of 1 KiB: ten seconds of what one shard takes
_WAVE: Final = 1_000  # records that are put before each strike, and after the last one
_PATIENCE: Final = 300.0  # seconds until what has been written must be readable
_POLL: Final = 2.0


@dataclass(frozen=True)
class Verdict:
    """What a check found. `doubled` may be more than 0 where the promise is at least once."""

    check: str
    rows: int
    lost: int
    doubled: int
    seconds: float
    exactly_once: bool

    @property
    def holds(self) -> bool:
        return self.rows > 0 and self.lost == 0 and not (self.exactly_once and self.doubled)


class Checks:
    """The checks on one account.

    `drivers`: those started, which whoever made the list ends; `say`: reports progress.
    """

    def __init__(
        self, account: Account, directory: Path, drivers: list[Driver], say: Callable[[str], None]
    ) -> None:
        self._account = account
        self._directory = directory
        self._drivers = drivers
        self._say = say
        self._put = 0  # records, into the stream that is read

    def all(self) -> Sequence[tuple[str, Callable[[], Verdict]]]:
        """Each check with its name. They share a bucket and a table, so the order matters."""
        return (
            ("polling to s3, two kills", self.polling),
            ("fan-out to s3, reshards", self.fan_out),
            ("kinesis, throttled", self.throttled),
            ("sqs", self.sqs),
            ("dynamodb", self.dynamodb),
            ("dynamodb-streams", self.dynamodb_streams),
            ("firehose", self.firehose),
        )

    def polling(self) -> Verdict:
        """The driver is killed twice between commits."""
        self._account.bucket()
        stream = self._account.stream("in", 2)
        return self._stream(
            "polling to s3, two kills", stream, {"recordPublisher": "polling"}, reshards=False
        )

    def fan_out(self) -> Verdict:
        """The stream is resharded twice while it is read."""
        options = {"recordPublisher": "efo", "consumerName": self._account.name}
        stream = f"{self._account.name}-in"
        return self._stream("fan-out to s3, reshards", stream, options, reshards=True)

    def throttled(self) -> Verdict:
        """One shard is written to faster than it accepts."""
        stream = self._account.stream("out", 1)
        columns = ["rpad(cast(id AS string), 1024, ' ') AS data", "cast(id AS string) AS partitionKey"]
        sink = {"destination": "kinesis", "streamName": stream}

        def found() -> list[int]:
            return [int(record.data) for record in self._account.streams.read(stream)]

        return self._write("kinesis, throttled", _THROTTLED_ROWS, columns, sink, found)

    def sqs(self) -> Verdict:
        """A standard queue."""
        url = self._account.queue()
        seen: list[int] = []

        def found() -> list[int]:
            while messages := self._received(url):
                seen.extend(messages)
            return seen

        sink = {"destination": "sqs", "queueUrl": url}
        return self._write("sqs", _ROWS, ["cast(id AS string) AS body"], sink, found)

    def _received(self, url: str) -> list[int]:
        client = self._account.sqs
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        messages = answer.get("Messages", [])
        if messages:
            done = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
            client.delete_message_batch(QueueUrl=url, Entries=done)
        return [int(message["Body"]) for message in messages]

    def dynamodb(self) -> Verdict:
        """Items with an attribute of each simple type."""
        table = self._account.table()
        columns = ["id", "cast(id AS string) AS text", "id % 2 = 0 AS even"]

        def found() -> list[int]:
            pages = self._account.dynamodb.get_paginator("scan").paginate(
                TableName=table, ConsistentRead=True
            )
            return [int(item["id"]["N"]) for page in pages for item in page["Items"]]

        return self._write("dynamodb", _ROWS, columns, {"destination": "dynamodb", "tableName": table}, found)

    def dynamodb_streams(self) -> Verdict:
        """The changes that check `dynamodb` has made, in one batch read."""
        begun = time.monotonic()
        output = self._directory / "changes"
        options = self._region({"tableName": self._account.name, "startingPosition": "TRIM_HORIZON"})
        columns = ["get_json_object(keys, '$.id') AS id"]
        directory = self._of("dynamodb-streams")
        job = Job(0, directory, "dynamodb-streams", options, "json", {"path": str(output)}, columns)
        self._run(job)
        rows = [json.loads(line) for file in output.glob("*.json") for line in file.read_text().splitlines()]
        found = Counter(int(row["id"]) for row in rows)
        return self._verdict("dynamodb-streams", Counter(range(_ROWS)), found, begun, exactly_once=True)

    def firehose(self) -> Verdict:
        """Read back from the bucket, where the service writes after a minute."""
        name = self._account.delivery_stream(self._account.name)

        def found() -> list[int]:
            keys = self._keys("firehose/")
            text = b"".join(
                _unpacked(self._account.s3.get_object(Bucket=self._account.name, Key=k)) for k in keys
            )
            return [int(line) for line in text.split()]

        columns = ["concat(cast(id AS string), '\\n') AS data"]
        return self._write(
            "firehose", _ROWS, columns, {"destination": "firehose", "deliveryStream": name}, found
        )

    def _stream(self, name: str, stream: str, options: dict[str, str], *, reshards: bool) -> Verdict:
        """Reads a stream into files on S3 while records are put, with a strike between two waves of them."""
        begun = time.monotonic()
        prefix = "fan-out" if reshards else "polling"
        path = f"s3://{self._account.name}/{prefix}"
        source = self._region({"streamName": stream, "startingPosition": "TRIM_HORIZON", **options})
        sink = self._region({"destination": "s3", "path": path})
        columns = ["shardId", "sequenceNumber", "cast(data AS string) AS data"]

        def start(attempt: int) -> Driver:
            directory = self._of(prefix)
            job = Job(attempt, directory, "kinesis-efo", source, "async-sink", sink, columns, streaming=True)
            return self._start(job)

        def committed() -> Counter[tuple[str, str]]:
            return Counter(self._committed(path))

        driver = start(0)
        for strike in range(3):
            self._account.streams.put(stream, ((str(n), f"{prefix}-{n}".encode()) for n in range(_WAVE)))
            self._put += _WAVE
            if strike < 2:
                driver.wait_until(lambda: bool(committed()), "the first files are committed")
                if reshards:
                    self._account.streams.update_shard_count(stream, 4 if strike == 0 else 2)
                    self._say(f"resharded {stream}")
                else:
                    driver.kill()
                    self._say("killed the driver")
                    driver = start(strike + 1)
        expected = self._stored(stream)
        end = time.monotonic() + _PATIENCE
        while expected - committed() and time.monotonic() < end:
            time.sleep(_POLL)
        driver.end()
        return self._verdict(name, expected, committed(), begun, exactly_once=True)

    def _stored(self, stream: str) -> Counter[tuple[str, str]]:
        """All records that were put: shards of a reshard are listed with a delay."""
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            records = self._account.streams.read(stream)
            if len(records) >= self._put:
                return Counter((record.shard, str(record.sequence_number)) for record in records)
            time.sleep(_POLL)
        raise TimeoutError(f"{len(records)} of {self._put} records can be read from {stream}")

    def _committed(self, path: str) -> Iterable[tuple[str, str]]:
        for url in sluice.committed_files(path, region=self._account.region):
            bucket, _, key = url.removeprefix("s3://").partition("/")
            body = self._account.s3.get_object(Bucket=bucket, Key=key)["Body"].read()
            columns = pq.read_table(io.BytesIO(body), columns=["shardId", "sequenceNumber"]).to_pydict()
            yield from zip(columns["shardId"], columns["sequenceNumber"], strict=True)

    def _write(
        self, name: str, rows: int, columns: list[str], sink: dict[str, str], found: Callable[[], list[int]]
    ) -> Verdict:
        """Writes the numbers below `rows`, and reads them back until none is missing."""
        begun = time.monotonic()
        source = {"end": str(rows)}
        self._run(
            Job(0, self._of(sink["destination"]), RANGE, source, "async-sink", self._region(sink), columns)
        )
        expected, read = Counter(range(rows)), Counter(found())
        end = time.monotonic() + _PATIENCE
        while expected - read and time.monotonic() < end:
            time.sleep(_POLL)
            read = Counter(found())
        return self._verdict(name, expected, read, begun, exactly_once=False)

    def _start(self, job: Job) -> Driver:
        driver = Driver(job, "integration.verify_aws.job")
        self._drivers.append(driver)
        driver.wait_for("ready")
        assert driver.process.stdin is not None
        driver.process.stdin.write(b"start\n")
        driver.process.stdin.flush()
        return driver

    def _run(self, job: Job) -> None:
        driver = self._start(job)
        driver.wait_for("done")
        driver.end()

    def _keys(self, prefix: str) -> list[str]:
        pages = self._account.s3.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self._account.name, Prefix=prefix)
        return [each["Key"] for page in found for each in page.get("Contents", [])]

    def _region(self, options: dict[str, str]) -> dict[str, str]:
        return {**options, "region": self._account.region}

    def _of(self, check: str) -> str:
        directory = self._directory / check
        directory.mkdir(exist_ok=True)
        return str(directory)

    @staticmethod
    def _verdict(
        name: str, expected: Counter[Any], found: Counter[Any], begun: float, *, exactly_once: bool
    ) -> Verdict:
        lost, doubled = (expected - found).total(), (found - expected).total()
        return Verdict(name, expected.total(), lost, doubled, time.monotonic() - begun, exactly_once)


def _unpacked(answer: dict[str, Any]) -> bytes:
    body: bytes = answer["Body"].read()
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
