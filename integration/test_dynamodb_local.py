"""DynamoDB Streams against the vendor's own local server, whose shards roll over: without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from integration.support.dynamodb_local import DynamoDbLocal, dynamodb_local, missing_tools
from sluice.dynamodb_streams.source import DynamoDbStreamsSource
from sluice.errors import DataLossError
from sluice.source import Limits, Offsets, ReadTask

TIMEOUT = 300.0

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason="DynamoDB Local needs a JDK and Maven")


@pytest.fixture(scope="module")
def local() -> Iterator[DynamoDbLocal]:
    with dynamodb_local() as server:
        yield server


class Table:
    """A table with a stream, and what was written to it."""

    def __init__(self, local: DynamoDbLocal, name: str) -> None:
        self.name = name
        self.local = local
        self.endpoint = local.server.endpoint
        self.client: Any = boto3.client("dynamodb", endpoint_url=self.endpoint, region_name="us-east-1")
        self.expected: list[tuple[str, int]] = []  # the item's key and version, in order for each key
        self.client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        self.enable()

    def enable(self) -> None:
        specification = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
        self.client.update_table(TableName=self.name, StreamSpecification=specification)

    def disable(self) -> None:
        self.client.update_table(TableName=self.name, StreamSpecification={"StreamEnabled": False})

    def put(self, count: int) -> None:
        for _ in range(count):
            version = len(self.expected)
            key = f"item-{version % 7}"
            item = {"id": {"S": key}, "version": {"N": str(version)}, "tags": {"SS": ["b", "a"]}}
            self.client.put_item(TableName=self.name, Item=item)
            self.expected.append((key, version))

    def query(self, **options: str) -> Query:
        base = {"tableName": self.name, "endpointUrl": self.endpoint, "region": "us-east-1"}
        return Query({**base, "startingPosition": "TRIM_HORIZON", "emptyPagesAtTip": "2", **options})


class Query:
    """A streaming query as Spark runs it: the end of a batch is logged before the batch is read."""

    def __init__(self, options: dict[str, str]) -> None:
        self.source = DynamoDbStreamsSource.configured(options, streaming=True)
        self.offsets: list[dict[str, Any]] = []
        self.rows: list[list[dict[str, Any]]] = []
        self._enumerator: Any = self.source.create_enumerator()

    def restart(self) -> None:
        self.close()
        self._enumerator = self.source.create_enumerator()

    def close(self) -> None:
        self._enumerator.close()

    def run(self, batches: int = 1) -> None:
        if not self.offsets:
            self.offsets.append(_through_json(self._enumerator.initial()))
        for _ in range(batches):
            end = self._enumerator.advance(Offsets.from_json(self.offsets[-1]), self.source.limits)
            if _through_json(end) != self.offsets[-1]:
                self.offsets.append(_through_json(end))
                self.rows.append(self.read(-1))

    def read_until(self, count: int) -> None:
        end = time.monotonic() + TIMEOUT
        while sum(map(len, self.rows)) < count:
            assert time.monotonic() < end, f"{sum(map(len, self.rows))} rows of {count}"
            self.run()
            time.sleep(0.02)

    def read(self, batch: int) -> list[dict[str, Any]]:
        number = batch if batch >= 0 else len(self.offsets) - 1 + batch
        start, end = map(Offsets.from_json, self.offsets[number : number + 2])
        tasks = self.source.deal(self._enumerator.ranges(start, end))
        found = [self.source.read_task(ReadTask(tuple(task))) for task in tasks]
        return [row for batches in found for each in batches for row in each.to_pylist()]

    @property
    def versions(self) -> list[tuple[str, int]]:
        images = [json.loads(row["newImage"]) for rows in self.rows for row in rows]
        return [(image["id"], image["version"]) for image in images]


def _through_json(offsets: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(offsets.to_json()))
    return parsed


def by_key(versions: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, version in versions:
        found.setdefault(key, []).append(version)
    return found


def test_shards_that_roll_over_are_read_once_and_in_order(local: DynamoDbLocal) -> None:
    """Each item's versions come in their order, in exactly the batch that the offsets say."""
    table = Table(local, "rolling")
    table.put(20)
    query = table.query(maxRecordsPerTrigger="15")
    assert query.source.limits == Limits(records=15)
    for turn in range(4):
        query.run(2)
        local.roll()
        table.put(20)
        if turn == 1:
            query.restart()
    query.read_until(100)
    query.run(3)

    assert by_key(query.versions) == by_key(table.expected)
    assert len({row["shardId"] for rows in query.rows for row in rows}) >= 4
    for number, rows in enumerate(query.rows):
        key = ("shardId", "sequenceNumber")
        assert sorted([r[k] for k in key] for r in query.read(number)) == sorted(
            [r[k] for k in key] for r in rows
        )
    first = query.rows[0][0]
    assert (first["eventName"], first["tableName"], first["keys"]) == ("INSERT", "rolling", '{"id":"item-0"}')
    assert json.loads(first["newImage"])["tags"] == ["a", "b"]
    query.close()


def test_latest_reads_what_comes(local: DynamoDbLocal) -> None:
    """Not what was there, also where the server cuts the times of records to minutes."""
    table = Table(local, "latest")
    table.put(10)
    query = table.query(startingPosition="LATEST")
    query.run()
    table.put(5)
    query.read_until(5)
    local.roll()
    table.put(5)
    query.read_until(10)

    assert by_key(query.versions) == by_key(table.expected[10:])
    query.close()


def test_a_stream_that_is_enabled_anew(local: DynamoDbLocal) -> None:
    """The query fails and names both streams; what the first one has left is read by its ARN."""
    table = Table(local, "anew")
    table.put(10)
    query = table.query(maxRecordsPerTrigger="4")
    query.run()
    table.disable()
    table.enable()
    table.put(3)
    query.restart()

    with pytest.raises(DataLossError, match="stream anew was deleted and created again"):
        query.run(3)
    streams: Any = boto3.client("dynamodbstreams", endpoint_url=table.endpoint, region_name="us-east-1")
    first = min(each["StreamArn"] for each in streams.list_streams(TableName="anew")["Streams"])
    rest = DynamoDbStreamsSource.configured(
        {"streamArn": first, "endpointUrl": table.endpoint, "region": "us-east-1"}, streaming=False
    )
    ranges, assignment = rest.plan_bounded()
    assert list(assignment) == ["anew"]
    rows = [
        row
        for task in rest.deal(ranges)
        for each in rest.read_task(ReadTask(task))
        for row in each.to_pylist()
    ]
    assert len(rows) == 10
    query.close()
