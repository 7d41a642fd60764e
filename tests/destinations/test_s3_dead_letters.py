"""Dead letters in S3: names and times of objects, and refusals."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions as sdk
from fake_service import read_async_sink

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.s3_dead_letters import S3DeadLetterQueue
from sluice.errors import OptionError, ServiceError
from sluice.retry import Retrier
from sluice.sink import DeadLetter
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import LocalDeadLetterQueue

ORIGIN = Origin("fake", query="q", run="r", batch=7, partition=3, attempt=9)
NAME = "q/batch-0000000007/part-00003-attempt-9-r-{:04}.jsonl"
KINESIS = {"destination": "kinesis", "streamName": "orders", "region": "eu-west-1"}


class Bucket:
    """Stores objects, after a number of failures."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.objects: dict[tuple[str, str], list[Any]] = {}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, ContentType: str) -> Any:  # noqa: N803 - S3's
        assert ContentType == "application/x-ndjson"
        if self.failures:
            raise self.failures.pop(0)
        self.objects[Bucket, Key] = [json.loads(line)["data"] for line in Body.splitlines()]
        return {"ETag": "stored"}


def refusal(code: str, status: int) -> Exception:
    details: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return sdk.ClientError(details, "PutObject")


def queue(bucket: Bucket, path: str = "s3://letters/of/orders/", **changes: Any) -> S3DeadLetterQueue:
    return S3DeadLetterQueue(
        path,
        ConnectionConfig(),
        ORIGIN,
        client=lambda _, service: {"s3": bucket}[service],
        retrier=Retrier(sleep=lambda _: None),
        **changes,
    )


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("s3://letters/of/orders/", "of/orders/"), ("s3://letters", ""), ("s3://letters/", "")],
)
def test_a_flush_puts_one_object_below_the_prefix(path: str, prefix: str) -> None:
    """It holds the dead letters since the last flush. Without any, nothing is put."""
    bucket = Bucket()
    dead_letters = queue(bucket, path)
    for data in (b"1", b"2"):
        dead_letters.add(DeadLetter("r", data))
    assert bucket.objects == {}
    dead_letters.flush()
    dead_letters.flush()
    dead_letters.add(DeadLetter("r", b"3"))
    dead_letters.flush()

    assert bucket.objects == {
        ("letters", prefix + NAME.format(0)): ["MQ==", "Mg=="],
        ("letters", prefix + NAME.format(1)): ["Mw=="],
    }


def test_memory_is_bounded() -> None:
    """When the object size is reached, an object is put before the task's end."""
    bucket = Bucket()
    dead_letters = queue(bucket, object_size=1000)
    for n in range(100):
        dead_letters.add(DeadLetter("r", str(n).encode()))
        assert len(dead_letters._lines) < 1200
    dead_letters.flush()

    assert len(bucket.objects) > 5
    assert sum(map(len, bucket.objects.values())) == 100


def test_transient_errors_are_retried() -> None:
    """Throttling and lost connections. Each dead letter is stored once."""
    bucket = Bucket(refusal("SlowDown", 503), sdk.ConnectionClosedError(endpoint_url="http://s3.test"))
    dead_letters = queue(bucket)
    dead_letters.add(DeadLetter("r", b"1"))
    dead_letters.flush()

    assert list(bucket.objects.values()) == [["MQ=="]]


def test_expired_credentials_are_loaded_anew_unless_they_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a role may expire while a task runs. The next attempt has new ones."""
    bucket = Bucket(refusal("ExpiredToken", 400))
    dead_letters = queue(bucket)
    dead_letters.add(DeadLetter("r", b"1"))
    dead_letters.flush()
    assert list(bucket.objects.values()) == [["MQ=="]]

    monkeypatch.setattr(ConnectionConfig, "has_fixed_credentials", True)
    dead_letters = queue(Bucket(refusal("ExpiredToken", 400)))
    dead_letters.add(DeadLetter("r", b"1"))
    with pytest.raises(ServiceError, match="ExpiredToken"):
        dead_letters.flush()


def test_a_refusal_fails_the_task_and_names_the_option() -> None:
    """Without access, for example. The epoch is not committed."""
    dead_letters = queue(Bucket(refusal("AccessDenied", 403)))
    dead_letters.add(DeadLetter("r", b"1"))
    with pytest.raises(ServiceError, match=r"PutObject of s3://letters/of/orders/.*'deadLetterPath'"):
        dead_letters.flush()


def test_the_path_selects_the_queue(tmp_path: Path) -> None:
    """A directory, also as a file URL; S3 for its scheme; none without the option."""

    def made(path: str) -> Any:
        create = read_async_sink(KINESIS | {"deadLetterPath": path}).dead_letters
        return create(ORIGIN) if create else None

    assert isinstance(made(str(tmp_path)), LocalDeadLetterQueue)
    assert isinstance(made(f"file://{tmp_path}"), LocalDeadLetterQueue)
    assert isinstance(made("s3://letters/x"), S3DeadLetterQueue)
    assert read_async_sink(KINESIS).dead_letters is None


class Digesting(Bucket):
    """Refuses bodies that have another digest, as S3 does; or does not look at digests, as some servers."""

    def __init__(self, *failures: Exception, is_strict: bool = True) -> None:
        super().__init__(*failures)
        self.is_strict = is_strict

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, ContentMD5: str) -> Any:  # type: ignore[override]  # noqa: N803
        if self.failures:
            raise self.failures.pop(0)
        digest = base64.b64encode(hashlib.md5(Body, usedforsecurity=False).digest()).decode()
        if self.is_strict and ContentMD5 != digest:
            raise refusal("BadDigest", 400)
        self.objects[Bucket, Key] = []
        return {"ETag": "stored"}

    def delete_object(self, *, Bucket: str, Key: str) -> Any:  # noqa: N803 - S3's
        del self.objects[Bucket, Key]
        return {}


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_check_leaves_no_object(*, is_strict: bool) -> None:
    bucket = Digesting(is_strict=is_strict)
    queue(bucket).check_writable(lambda: False)
    assert bucket.objects == {}


@pytest.mark.parametrize(
    ("code", "is_local"), [("AccessDenied", True), ("NoSuchBucket", True), ("NoSuchBucket", False)]
)
def test_a_bucket_that_takes_no_objects_is_refused(code: str, *, is_local: bool) -> None:
    with pytest.raises(OptionError, match=rf"'deadLetterPath' is 's3://letters/of/orders/'.*{code}"):
        queue(Digesting(refusal(code, 403))).check_writable(lambda: is_local)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_check_that_fails_for_a_passing_reason_says_so(
    caplog: pytest.LogCaptureFixture, *, is_local: bool
) -> None:
    """Somebody has been called out of bed to start the query. It starts."""
    queue(Digesting(*[refusal("SlowDown", 503)] * 9)).check_writable(lambda: is_local)
    assert "the query starts all the same" in caplog.text
    assert "SlowDown" in caplog.text


def test_a_cluster_may_have_rights_that_the_driver_lacks(caplog: pytest.LogCaptureFixture) -> None:
    """A role of the hosts that run tasks, for instance: a query that has run does not stop for that."""
    queue(Digesting(refusal("AccessDenied", 403))).check_writable(lambda: False)
    assert "the driver cannot write dead letters there" in caplog.text
    assert "AccessDenied" in caplog.text
