"""S3 is away for a while: calls of tasks and of the commit are retried for `maxRetryDuration`."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest
from botocore import exceptions as sdk
from fake_s3 import CONNECTION, FakeS3, destination, refusal
from pyspark.sql.types import LongType, StructField, StructType

from sluice.destinations import read_sink
from sluice.destinations.common.bucket import Bucket
from sluice.destinations.s3_dead_letters import S3DeadLetterQueue
from sluice.errors import OptionError, ServiceError
from sluice.retry import Retrier
from sluice.sink import Origin
from sluice.sink.letters.dead_letters import DeadLetter

PATIENCE = 900.0
AWAY = sdk.EndpointConnectionError(endpoint_url="http://s3.test")


class Clock:
    """Time passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def read(self) -> float:
        return self.now


def write(clock: Clock, s3: FakeS3) -> None:
    """All that a task and a commit do."""
    retrier = Retrier(clock.sleep, lambda: 0.5, clock.read)
    bucket = Bucket("lake", CONNECTION, client=s3.client, retrier=retrier, patience=PATIENCE)
    upload = bucket.create_upload("key", "text/plain")
    part = bucket.upload_part("key", upload, 1, b"rows")
    bucket.complete_upload("key", upload, [part])
    assert bucket.put_if_absent("manifest", b"{}")


@pytest.mark.parametrize("failure", [AWAY, refusal("SlowDown", 503), refusal("InternalError", 500)])
@pytest.mark.parametrize(
    "operation", ["create_multipart_upload", "upload_part", "complete_multipart_upload", "put_object"]
)
def test_an_outage_of_minutes_ends_no_call(
    operation: str, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged when it begins and when it ends."""
    clock = Clock()
    s3 = FakeS3(lambda _number, called: failure if called == operation and clock.now < 600 else None)
    with caplog.at_level(logging.INFO, "sluice.retry"):
        write(clock, s3)
    assert clock.now >= 600
    assert s3.objects["key"] == b"rows"
    began, ended = [record.message for record in caplog.records]
    assert began.startswith("retrying for up to 900 s: ")
    assert ended.startswith("succeeded after 60")


def test_patience_ends() -> None:
    clock = Clock()
    with pytest.raises(ServiceError) as raised:
        write(clock, FakeS3(lambda _number, _operation: AWAY))
    assert raised.value.retryable
    assert PATIENCE <= clock.now < PATIENCE + 10


@pytest.mark.parametrize("operation", ["create_multipart_upload", "upload_part"])
def test_a_writer_whose_patience_has_ended_is_not_asked_again(operation: str) -> None:
    """A second `prepare_commit` would leave out the file whose part failed."""
    s3 = FakeS3(lambda _number, called: AWAY if called == operation else None)
    schema = StructType([StructField("id", LongType())])
    writer = destination(s3).create_writer(schema, Origin("s3", "q", "r", 0, 0, 0))

    def write_all() -> None:
        writer.write(pa.record_batch({"id": pa.array([1])}))
        writer.prepare_commit()

    with pytest.raises(ServiceError) as raised:
        write_all()
    assert not raised.value.retryable


def test_what_is_wrong_for_good_fails_at_once() -> None:
    clock = Clock()
    with pytest.raises(ServiceError):
        write(clock, FakeS3(lambda _number, _operation: refusal("AccessDenied", 403)))
    assert clock.now == 0


def test_an_outage_of_minutes_loses_no_dead_letter() -> None:
    clock = Clock()
    s3 = FakeS3(lambda _number, _called: AWAY if clock.now < 600 else None)
    queue = S3DeadLetterQueue(
        "s3://lake/letters",
        CONNECTION,
        Origin("fake"),
        client=s3.client,
        retrier=Retrier(clock.sleep, lambda: 0.5, clock.read),
        patience=PATIENCE,
    )
    queue.add(DeadLetter("too large", b"row"))
    queue.flush()

    assert clock.now >= 600
    assert len(s3.objects) == 1


def test_the_option_is_of_destinations_that_read_it() -> None:
    """Every committer's epoch and writer, too. Others of a writer that sends batches are still refused."""
    options = {"destination": "s3", "path": "s3://lake/events", "region": "us-east-1"}
    setup: Any = read_sink(options | {"maxRetryDuration": "2m"})
    assert setup.max_retry_duration == 120
    assert setup.destination._place.store._backoff.give_up_after == 120
    letters = {"destination": "sqs", "queueUrl": "https://sqs.us-east-1.amazonaws.com/1/q"}
    letters |= {"region": "us-east-1", "deadLetterPath": "s3://lake/letters", "maxRetryDuration": "2m"}
    sqs: Any = read_sink(letters)
    assert sqs.dead_letters(Origin("sqs"))._bucket._backoff.give_up_after == 120
    with pytest.raises(OptionError, match="maxInFlightRequests"):
        read_sink(options | {"maxInFlightRequests": "2"})
