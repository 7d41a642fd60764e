"""What is written to and read back, by service: options, the shape of rows, and the server's own client."""

from __future__ import annotations

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import boto3
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from integration.foreign.files import S3
from integration.foreign.rows import PER_BATCH, ROWS, Row, expected, from_json
from integration.foreign.target import Target
from integration.support.kinesis import Streams

_AT_ONCE: Final = 10


class Sqs(Target):
    """A FIFO queue with 16 groups."""

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        ids = ("CAST(id % 16 AS STRING) AS messageGroupId", "CAST(id AS STRING) AS messageDeduplicationId")
        return frame.selectExpr("to_json(struct(*)) AS body", *ids)

    def prepare(self) -> dict[str, str]:
        queue = self.client("sqs").create_queue(QueueName="rows.fifo", Attributes={"FifoQueue": "true"})
        self.url = queue["QueueUrl"]
        return self.aws(destination="sqs", queueUrl=self.url)

    def read(self) -> Iterable[Row]:
        client = self.client("sqs")
        self.disordered = 0
        newest: dict[int, int] = {}
        request = {"QueueUrl": self.url, "MaxNumberOfMessages": _AT_ONCE}
        while found := client.receive_message(**request).get("Messages"):
            for message in found:
                row = from_json(message["Body"])
                self.disordered += row["id"] < newest.get(row["id"] % 16, -1)
                newest[row["id"] % 16] = row["id"]
                yield row
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
            client.delete_message_batch(QueueUrl=self.url, Entries=entries)


class Kinesis(Target):
    """A stream of four shards, with rows as JSON."""

    is_once = False

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("*", "CAST(id AS STRING) AS partitionKey")

    def prepare(self) -> dict[str, str]:
        self.streams = Streams(self.endpoint)
        self.stream = self.streams.create(4)
        converter = "sluice.sink.converters:JsonConverter"
        return self.aws(destination="kinesis", streamName=self.stream, elementConverter=converter)

    def read(self) -> Iterable[Row]:
        return (from_json(record.data) for record in self.streams.read(self.stream))


class KinesisSource(Target):
    """The same stream, read: into Parquet, by Spark's own exact sink."""

    def prepare(self) -> dict[str, str]:
        streams = Streams(self.endpoint)
        stream = streams.create(4)
        streams.put(stream, ((f"key-{n}", _to_json(n)) for n in range(ROWS)))
        # Its CBOR library damages large answers.
        self.source = self.aws(
            streamName=stream,
            startingPosition="TRIM_HORIZON",
            maxRecordsPerTrigger=str(PER_BATCH),
            wireFormat="json",
        )
        return {"format": "parquet", "path": str(self.directory / "rows")}

    def read(self) -> Iterable[Row]:
        # A compacted log holds those before it.
        logs = (self.directory / "rows" / "_spark_metadata").glob("[0-9]*")
        lines = {line for log in logs for line in log.read_text().splitlines()[1:]}
        for line in lines:
            for data in pq.read_table(unquote(json.loads(line)["path"]).removeprefix("file://"))["data"]:
                yield from_json(data.as_py())


class DynamoDb(Target):
    """A table; a row that is written again replaces itself."""

    def prepare(self) -> dict[str, str]:
        client = self.client("dynamodb")
        with contextlib.suppress(client.exceptions.ResourceInUseException):
            client.create_table(
                TableName="rows",
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
                BillingMode="PAY_PER_REQUEST",
            )
        client.get_waiter("table_exists").wait(TableName="rows", WaiterConfig={"Delay": 1})
        return self.aws(destination="dynamodb", tableName="rows", keyColumns="id")

    def read(self) -> Iterable[Row]:
        table: Any = boto3.resource("dynamodb", endpoint_url=self.endpoint).Table("rows")
        start: dict[str, Any] = {}
        while True:
            page = table.scan(**start)
            for item in page["Items"]:
                numbers: Row = {"id": int(item["id"])}
                if "data" in item:
                    numbers |= {"data": item["data"].value}
                if "list" in item:
                    numbers |= {"list": [int(each) for each in item["list"]]}
                yield item | numbers
            if "LastEvaluatedKey" not in page:
                return
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


class _Http(Target):
    def call(self, path: str, body: object = None, method: str = "POST") -> bytes:
        """Asks the server, as its documentation says."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.endpoint + path, data, headers, method=method)  # noqa: S310
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            content: bytes = answer.read()
            return content


class OpenSearch(_Http):
    """An index, by the bulk API: a row that is written again replaces its document."""

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("id", "to_json(struct(*)) AS body")

    def prepare(self) -> dict[str, str]:
        mapping = {"dynamic": False, "properties": {"id": {"type": "long"}}}
        settings = {"number_of_shards": 1, "number_of_replicas": 0}
        try:
            self.call("/rows", {"mappings": mapping, "settings": settings}, "PUT")
        except urllib.error.HTTPError as error:
            if b"resource_already_exists" not in error.read():
                raise
        return {
            "destination": "http",
            "url": f"{self.endpoint}/rows/_bulk",
            "elementConverter": "integration.foreign.converters:BulkConverter",
            "bodyFormat": "jsonLines",
            "resultsPath": "$.items[*].*",
            "resultErrorPath": "$.error.type",
            "resultStatusPath": "$.status",
        }

    def read(self) -> Iterable[Row]:
        self.call("/rows/_refresh")
        after: list[int] = [-1]
        while after:
            query = {"size": 1000, "sort": [{"id": "asc"}], "search_after": after}
            hits = json.loads(self.call("/rows/_search", query), parse_float=str)["hits"]["hits"]
            yield from (from_json(json.dumps(hit["_source"])) for hit in hits)
            after = hits[-1]["sort"] if hits else []


class VictoriaLogs(_Http):
    """Lines, gzipped; each holds the row as text, as this server makes text of everything."""

    is_once = False

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        line = "id, '2026-01-01T00:00:00Z' AS _time, 'rows' AS app, to_json(struct(*)) AS _msg"
        return frame.selectExpr(f"to_json(struct({line})) AS body")

    def prepare(self) -> dict[str, str]:
        self.call("/health", method="GET")
        return {
            "destination": "http",
            "url": f"{self.endpoint}/insert/jsonline?_stream_fields=app",
            "bodyFormat": "jsonLines",
            "compression": "gzip",
        }

    def read(self) -> Iterable[Row]:
        lines = self.call("/select/logsql/query?query=_time:2026-01-01Z%20%7C%20fields%20_msg").splitlines()
        return (from_json(json.loads(line)["_msg"]) for line in lines)


def _to_json(number: int) -> bytes:
    """As Spark writes it."""
    row = expected(number)
    if "data" in row:
        row["data"] = base64.b64encode(row["data"]).decode()
    if "price" in row:
        row["price"] = str(row["price"])
    return json.dumps(row, ensure_ascii=False).encode()


TARGETS: Final[Mapping[str, type[Target]]] = {
    "s3": S3,
    "sqs": Sqs,
    "kinesis": Kinesis,
    "kinesis-efo": KinesisSource,
    "dynamodb": DynamoDb,
    "opensearch": OpenSearch,
    "victorialogs": VictoriaLogs,
}
