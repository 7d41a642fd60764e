"""Dead letters in S3, against an emulator over a socket."""

from __future__ import annotations

import json

import boto3
import pytest

from integration.support.kinesis import REGION
from integration.support.servers import Server
from sluice.destinations import read_sink
from sluice.errors import ServiceError
from sluice.sink import DeadLetter
from sluice.sink.dead_letters import Origin

ORIGIN = Origin("kinesis stream 'x'", query="q", run="r", batch=3)


def options(moto: Server, path: str) -> dict[str, str]:
    return {
        "destination": "kinesis",
        "streamName": "x",
        "region": REGION,
        "endpointUrl": moto.endpoint,
        "deadLetterPath": path,
    }


def test_letters_are_objects_of_json_lines(moto: Server) -> None:
    """One object a flush, below the prefix, with all that was added."""
    s3 = boto3.client("s3", endpoint_url=moto.endpoint, region_name=REGION)
    s3.create_bucket(Bucket="letters")
    create = read_sink(options(moto, "s3://letters/of/x")).dead_letters
    assert create is not None
    queue = create(ORIGIN)
    for data in (b"1", b"2"):
        queue.add(DeadLetter("no", data))
    queue.flush()
    queue.close()
    (found,) = s3.list_objects_v2(Bucket="letters")["Contents"]
    body = s3.get_object(Bucket="letters", Key=found["Key"])["Body"].read()

    assert found["Key"] == "of/x/q/batch-0000000003/part-00000-attempt-0-r-0000.jsonl"
    assert [json.loads(line)["data"] for line in body.splitlines()] == ["MQ==", "Mg=="]


def test_a_bucket_that_is_not_there_fails_the_task(moto: Server) -> None:
    """Before Spark hears that the task is done."""
    create = read_sink(options(moto, "s3://nowhere-to-be-found/x")).dead_letters
    assert create is not None
    queue = create(ORIGIN)
    queue.add(DeadLetter("no", b"1"))
    with pytest.raises(ServiceError, match=r"NoSuchBucket.*") as caught:
        queue.flush()

    assert caught.value.missing
