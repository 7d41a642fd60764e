"""Records are decoded once, and say what the SDK would have read."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from sluice.aws.errors import DamagedAnswerError
from sluice.aws.wire.changes import changes_of, read_changes
from sluice.dynamodb_streams.record_batches import ARROW_SCHEMA, to_record_batches
from sluice.source.model.splits import SplitId

SPLIT = SplitId("orders", "shardId-00000001414576573621-f55eea83")
# The example of API_streams_GetRecords, with what else a record may have.
BODY: dict[str, Any] = {
    "NextShardIterator": "arn:aws:dynamodb:us-west-2:111122223333:table/Forum/stream/2015|1|AAAA",
    "Records": [
        {
            "awsRegion": "us-west-2",
            "dynamodb": {
                "ApproximateCreationDateTime": 1.46480646e9,
                "Keys": {"ForumName": {"S": "DynamoDB"}},
                "NewImage": {"n": {"N": "1.50"}, "b": {"B": "eHk="}},
                "SequenceNumber": "300000000000000499659",
                "SizeBytes": 41,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
            "eventID": "e2fd9c34eff2d779b297b26f5fef4206",
            "eventName": "INSERT",
            "eventSource": "aws:dynamodb",
            "eventVersion": "1.0",
        },
        {
            "awsRegion": "us-west-2",
            "dynamodb": {
                "ApproximateCreationDateTime": 1464806520,
                "Keys": {"ForumName": {"S": "S3"}},
                "OldImage": {"n": {"N": "2"}},
                "SequenceNumber": "400000000000000499660",
                "SizeBytes": 28,
                "StreamViewType": "NEW_AND_OLD_IMAGES",
            },
            "eventID": "4b25bd0da9a181a155114127e4837252",
            "eventName": "REMOVE",
            "userIdentity": {"principalId": "dynamodb.amazonaws.com", "type": "Service"},
        },
    ],
}


def response(body: bytes) -> dict[str, Any]:
    return {"body": body, "headers": {}, "status_code": 200}


def rows(answer: dict[str, Any], image_format: str = "json") -> list[dict[str, Any]]:
    batches = to_record_batches([(SPLIT, changes_of(answer))], image_format)
    found: list[dict[str, Any]] = [row for batch in batches for row in batch.to_pylist()]
    return found


def test_a_record_becomes_a_row() -> None:
    """All columns, as the documents of the service have them."""
    first, second = rows(read_changes(response(json.dumps(BODY).encode())))

    assert first == {
        "eventID": "e2fd9c34eff2d779b297b26f5fef4206",
        "eventName": "INSERT",
        "keys": '{"ForumName":"DynamoDB"}',
        "newImage": '{"n":1.50,"b":"eHk="}',
        "oldImage": None,
        "streamViewType": "NEW_AND_OLD_IMAGES",
        "sizeBytes": 41,
        "sequenceNumber": "300000000000000499659",
        "approximateCreationDateTime": datetime(2016, 6, 1, 18, 41, tzinfo=timezone.utc),
        "userIdentity": None,
        "tableName": "orders",
        "shardId": SPLIT.shard,
    }
    assert (second["eventName"], second["newImage"], second["oldImage"]) == ("REMOVE", None, '{"n":2}')
    assert json.loads(second["userIdentity"]) == BODY["Records"][1]["userIdentity"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"Records": [',
        b"{}",
        b'{"Records": [{"eventID": "1"}]}',
        b'{"Records": [{"dynamodb": {"SequenceNumber": "1"}}]}',
    ],
)
def test_a_damaged_answer_is_no_empty_page(body: bytes) -> None:
    """An answer without ``NextShardIterator`` would end its shard."""
    with pytest.raises(DamagedAnswerError):
        read_changes(response(body))


def test_small_pages_share_a_batch() -> None:
    """Rows stay in order, with the names of their shards."""
    records = changes_of(read_changes(response(json.dumps(BODY).encode())))
    other = SplitId("orders", "shardId-00000001414576573622-aaaaaaaa")
    batches = list(to_record_batches([(SPLIT, records), (other, records[:1])], "json"))

    assert len(batches) == 1
    assert batches[0].schema == ARROW_SCHEMA
    assert batches[0].column("shardId").to_pylist() == [SPLIT.shard, SPLIT.shard, other.shard]
