"""Dead letters in S3, against an emulator over a socket."""

from __future__ import annotations

import json

import boto3
import pytest

from integration.support.kinesis import REGION
from integration.support.servers import Server
from sluice.destinations import read_sink
from sluice.errors import OptionError, ServiceError
from sluice.sink import DeadLetter, Origin
from sluice.sink.letters.dead_letters import CheckedDeadLetterQueue
from sluice.sink.setup import AsyncSinkSetup

ORIGIN = Origin("kinesis stream 'x'", query="q", run="r", batch=3)


def dead_letter_queue(moto: Server, path: str) -> CheckedDeadLetterQueue:
    setup = read_sink(
        {
            "destination": "kinesis",
            "streamName": "x",
            "region": REGION,
            "endpointUrl": moto.endpoint,
            "deadLetterPath": path,
        }
    )
    assert isinstance(setup, AsyncSinkSetup)
    assert setup.dead_letters is not None
    return setup.dead_letters(ORIGIN)


def test_dead_letters_are_objects_of_json_lines(moto: Server) -> None:
    """One object a flush, below the prefix, with all that was added."""
    s3 = boto3.client("s3", endpoint_url=moto.endpoint, region_name=REGION)
    s3.create_bucket(Bucket="letters")
    queue = dead_letter_queue(moto, "s3://letters/of/x")
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
    queue = dead_letter_queue(moto, "s3://nowhere-to-be-found/x")
    queue.add(DeadLetter("no", b"1"))
    with pytest.raises(ServiceError, match=r"NoSuchBucket.*") as caught:
        queue.flush()

    assert caught.value.missing


def test_a_check_at_the_start_leaves_no_object(moto: Server) -> None:
    """Not even where digests are not checked, as here. A bucket that is not there is named."""
    s3 = boto3.client("s3", endpoint_url=moto.endpoint, region_name=REGION)
    s3.create_bucket(Bucket="checked")
    dead_letter_queue(moto, "s3://checked/x").check_writable(lambda: True)
    assert s3.list_objects_v2(Bucket="checked")["KeyCount"] == 0
    with pytest.raises(OptionError, match=r"'deadLetterPath' is 's3://nowhere/x'.*NoSuchBucket"):
        dead_letter_queue(moto, "s3://nowhere/x").check_writable(lambda: False)
