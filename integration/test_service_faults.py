"""Calls that fail at any moment of a query: it waits and continues, or says what failed and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.support.model_streams import ModelStreams
from integration.support.producer import Producer, check_exact
from integration.support.queries import PUBLISHERS, read_stream, start, wait_until
from integration.support.recorder import Recorder

BOTH = pytest.mark.usefixtures("publisher")

QUICK = {
    "describeStreamConsumerBackoffBase": "50ms",
    "getRecordsBackoffBase": "50ms",
    "getRecordsMaxRetries": "10",
    "getShardIteratorBackoffBase": "50ms",
    "getShardIteratorMaxRetries": "10",
    "listShardsBackoffBase": "200ms",
    "listShardsBackoffMax": "1s",
    "registerStreamConsumerBackoffBase": "50ms",
    "shardDiscoveryInterval": "1s",
    "subscribeToShardBackoffBase": "50ms",
}
THROTTLED = {"ProvisionedThroughputExceededException": 1.0}
NOW_AND_THEN = {
    "*": {
        "ProvisionedThroughputExceededException": 0.1,
        "LimitExceededException": 0.05,
        "KMSThrottlingException": 0.05,
        "InternalFailure": 0.05,
        "LostAnswer": 0.05,
    },
    "SubscribeToShard.event": {"InternalFailureException": 0.02, "KMSThrottlingException": 0.02},
}
POLLING = {"DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords"}
FAN_OUT = {"RegisterStreamConsumer", "DescribeStreamConsumer", "SubscribeToShard"}


@BOTH
def test_every_call_fails_at_every_moment(
    spark: SparkSession, service: ModelStreams, checkpoint: str, publisher: str
) -> None:
    """All calls are throttled while the query starts, some fail while it runs, then all are throttled again.
    Nothing fails the query, and every record comes once.
    """
    producer = Producer(service, service.create(2))
    producer.put(100)
    service.fail({"*": THROTTLED})
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream, **QUICK))
    wait_until(lambda: sum(service.failed.values()) >= 3, "calls at the start")
    service.fail(NOW_AND_THEN)
    recorder.wait_for(query, producer.count)
    with producer.putting():
        expected = POLLING if publisher == "polling" else POLLING | FAN_OUT
        failed: set[str] = set()

        def has_failed() -> bool:
            if error := query.exception():
                raise error
            failed.update(operation for operation, _ in service.failed)
            return failed >= expected or len(recorder.batches) >= 40

        wait_until(has_failed, "faults of every kind")
        service.fail({"*": THROTTLED})
        wait_until(lambda: sum(service.failed.values()) >= 5, "an outage")
    service.clear_faults()
    producer.put(100)
    recorder.wait_for(query, producer.count)
    query.stop()

    check_exact(recorder, producer)


# Operation, the publisher that calls it, and a refusal that no waiting helps against.
LASTING = [
    ("DescribeStreamSummary", "polling", "AccessDeniedException"),
    ("ListShards", "polling", "AccessDeniedException"),
    ("GetShardIterator", "polling", "AccessDeniedException"),
    ("GetRecords", "polling", "KMSDisabledException"),
    ("GetRecords", "polling", "KMSAccessDeniedException"),
    ("DescribeStreamConsumer", "efo", "AccessDeniedException"),
    ("RegisterStreamConsumer", "efo", "AccessDeniedException"),
    ("SubscribeToShard", "efo", "KMSDisabledException"),
]


def test_a_refusal_that_lasts_is_named(spark: SparkSession, service: ModelStreams, tmp_path: Path) -> None:
    """The query fails at once, and says which call of what was refused and why."""
    producer = Producer(service, service.create(1))
    recorder = Recorder(str(tmp_path / "running"))
    for number, (operation, publisher, code) in enumerate(LASTING):
        producer.put(10)
        service.fail({operation: {code: 1.0}})
        options = {**PUBLISHERS[publisher], **QUICK, "subscribeToShardFallback": "fail"}
        if publisher == "polling":
            del options["subscribeToShardFallback"]
        frame = read_stream(spark, service.endpoint, producer.stream, **options)
        message = start(frame, str(tmp_path / f"checkpoint-{number}")).error()
        assert f"ServiceError: {operation} of {producer.stream}" in message, message
        assert code in message, message
        service.clear_faults()

    frame = read_stream(spark, service.endpoint, producer.stream, **QUICK)
    query = recorder.start(frame)
    recorder.wait_for(query, producer.count)
    service.fail({"GetRecords": {"KMSDisabledException": 1.0}})
    wait_until(lambda: not query.isActive, "the query to fail")
    assert "KMSDisabledException" in str(query.exception())
    service.clear_faults()
    producer.put(10)
    query = recorder.start(frame)
    recorder.wait_for(query, producer.count)
    query.stop()
    check_exact(recorder, producer)


def test_credentials_that_expire(spark: SparkSession, service: ModelStreams, checkpoint: str) -> None:
    """Those of the SDK's chain are loaded anew for a while, so that a query survives until somebody has
    renewed them. Those in options cannot be: the query says so and fails.
    """
    producer = Producer(service, service.create(1))
    producer.put(10)
    recorder = Recorder(checkpoint)
    query = recorder.start(read_stream(spark, service.endpoint, producer.stream, **QUICK))
    recorder.wait_for(query, producer.count)
    service.model.expire_credentials("OLD")
    keys = {"awsAccessKeyId": "OLD", "awsSecretAccessKey": "secret"}
    frame = read_stream(spark, service.endpoint, producer.stream, **keys)
    message = start(frame, f"{checkpoint}-fixed").error()
    # Not before: it takes a slow machine as long to start a query as the other one survives.
    service.model.expire_credentials("test")
    producer.put(10)
    refused = expired(service)
    wait_until(lambda: refused() >= 5 or query.exception(), "calls to be refused")
    service.model.renew_credentials()
    recorder.wait_for(query, producer.count)
    query.stop()

    assert "ExpiredTokenException" in message
    assert "check the credentials" in message
    check_exact(recorder, producer)


def expired(service: ModelStreams) -> Callable[[], int]:
    """Counts the calls that are refused from now on because of expired credentials."""

    def count() -> int:
        refusals = dict(service.model.refusals)
        return sum(times for (_, code), times in refusals.items() if code == "ExpiredTokenException")

    before = count()
    return lambda: count() - before
