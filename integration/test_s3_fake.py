"""The fake of S3 of the fast tests is no kinder than servers that others wrote: the same calls to each.

Where a server answers otherwise, the fake goes by AWS' API reference:
https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html#API_CompleteMultipartUpload_Errors
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from botocore import exceptions as sdk

from integration.support import servers
from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig

FAKE = Path(__file__).resolve().parents[1] / "tests" / "destinations" / "fake_s3.py"
BUCKET = "lake"
PART = bytes(5 * 1024 * 1024)
JSON = "application/json"

Call = Callable[..., Any]


class Store:
    """A bucket of a client; each scenario has its own keys."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Call:
        return lambda **given: getattr(self._client, method)(Bucket=BUCKET, **given)

    def upload(self, key: str, **given: Any) -> str:
        created = self.create_multipart_upload(Key=key, ContentType=JSON, **given)
        return str(created["UploadId"])

    def part(self, key: str, upload: str, number: int, body: bytes, **given: Any) -> dict[str, Any]:
        answer = self.upload_part(Key=key, UploadId=upload, PartNumber=number, Body=body, **given)
        kept = {name: answer[name] for name in ("ETag", "ChecksumCRC32") if name in answer}
        return {"PartNumber": number, **kept}

    def complete(self, key: str, upload: str, *parts: dict[str, Any]) -> Any:
        return self.complete_multipart_upload(
            Key=key, UploadId=upload, MultipartUpload={"Parts": list(parts)}
        )

    def body(self, key: str) -> bytes:
        found: bytes = self.get_object(Key=key)["Body"].read()
        return found


def without_checksums(part: dict[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in ("PartNumber", "ETag")}


def two_parts(s3: Store) -> None:
    upload = s3.upload("two")
    parts = [s3.part("two", upload, 1, PART), s3.part("two", upload, 2, b"end")]
    s3.complete("two", upload, *map(without_checksums, parts))
    assert s3.body("two") == PART + b"end"


def named_checksums(s3: Store) -> None:
    crc = {"ChecksumAlgorithm": "CRC32"}
    upload = s3.upload("named", **crc)
    parts = [s3.part("named", upload, 1, PART, **crc), s3.part("named", upload, 2, b"end", **crc)]
    assert all("ChecksumCRC32" in part for part in parts)
    s3.complete("named", upload, *parts)
    assert s3.body("named") == PART + b"end"


def named_checksums_left_out(s3: Store) -> None:
    crc = {"ChecksumAlgorithm": "CRC32"}
    upload = s3.upload("left", **crc)
    s3.complete("left", upload, without_checksums(s3.part("left", upload, 1, b"x", **crc)))


def checksums_nobody_named(s3: Store) -> None:
    upload = s3.upload("nobody")
    part = s3.part("nobody", upload, 1, b"x", ChecksumAlgorithm="CRC32")
    s3.complete("nobody", upload, part)


def a_small_part_in_the_middle(s3: Store) -> None:
    upload = s3.upload("small")
    parts = [s3.part("small", upload, number, b"x") for number in (1, 2)]
    s3.complete("small", upload, *map(without_checksums, parts))


def parts_in_the_wrong_order(s3: Store) -> None:
    upload = s3.upload("order")
    parts = [s3.part("order", upload, number, PART) for number in (1, 2)]
    s3.complete("order", upload, *map(without_checksums, reversed(parts)))


def another_etag(s3: Store) -> None:
    upload = s3.upload("etag")
    part = without_checksums(s3.part("etag", upload, 1, b"x"))
    s3.complete("etag", upload, {**part, "ETag": '"0123456789abcdef0123456789abcdef"'})


def no_parts(s3: Store) -> None:
    s3.complete("none", s3.upload("none"))


def a_part_of_an_aborted_upload(s3: Store) -> None:
    upload = s3.upload("gone")
    s3.abort_multipart_upload(Key="gone", UploadId=upload)
    s3.part("gone", upload, 1, b"x")


def the_end_of_an_aborted_upload(s3: Store) -> None:
    upload = s3.upload("gone")
    part = s3.part("gone", upload, 1, b"x")
    s3.abort_multipart_upload(Key="gone", UploadId=upload)
    s3.complete("gone", upload, without_checksums(part))


def a_second_abort(s3: Store) -> None:
    upload = s3.upload("gone")
    for _ in range(2):
        s3.abort_multipart_upload(Key="gone", UploadId=upload)


def a_key_that_is_there_already(s3: Store) -> None:
    for _ in range(2):
        s3.put_object(Key="once", Body=b"x", ContentType=JSON, IfNoneMatch="*")


def a_key_that_is_not_there(s3: Store) -> None:
    s3.get_object(Key="absent")


def the_head_of_a_key_that_is_not_there(s3: Store) -> None:
    s3.head_object(Key="absent")


def removing_what_is_not_there(s3: Store) -> None:
    s3.delete_object(Key="absent")


def a_listing_by_prefix(s3: Store) -> None:
    keys = [f"list/{name}" for name in ("a", "b", "b/c", "d", "e")]
    for key in reversed(keys):
        s3.put_object(Key=key, Body=b"x", ContentType=JSON)
    s3.put_object(Key="lisu", Body=b"x", ContentType=JSON)
    found: list[str] = []
    token: dict[str, str] = {}
    while True:
        answer = s3.list_objects_v2(Prefix="list/", **token)
        found += [each["Key"] for each in answer["Contents"]]
        if not answer["IsTruncated"]:
            break
        token = {"ContinuationToken": answer["NextContinuationToken"]}
    assert found == sorted(keys)


SCENARIOS: Final[tuple[Callable[[Store], None], ...]] = (
    two_parts,
    named_checksums,
    named_checksums_left_out,
    checksums_nobody_named,
    a_small_part_in_the_middle,
    parts_in_the_wrong_order,
    another_etag,
    no_parts,
    a_part_of_an_aborted_upload,
    the_end_of_an_aborted_upload,
    a_second_abort,
    a_key_that_is_there_already,
    a_key_that_is_not_there,
    the_head_of_a_key_that_is_not_there,
    removing_what_is_not_there,
    a_listing_by_prefix,
)


OTHERWISE: Final[Mapping[tuple[str, Callable[[Store], None]], str]] = {
    ("seaweedfs", checksums_nobody_named): "",
    ("seaweedfs", no_parts): "NoSuchUpload",
    ("seaweedfs", a_second_abort): "",
    ("moto", named_checksums_left_out): "",
    ("moto", checksums_nobody_named): "",
    ("moto", parts_in_the_wrong_order): "",
    ("moto", a_part_of_an_aborted_upload): "500",
    ("moto", the_end_of_an_aborted_upload): "500",
}
"""Where a server is another one than AWS: the code with which it answers. The fake goes by the reference."""


def outcome(scenario: Callable[[Store], None], client: Any) -> str:
    """The code with which the scenario ends; empty where all is taken."""
    try:
        scenario(Store(client))
    except sdk.ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def fake() -> Any:
    spec = importlib.util.spec_from_file_location("fake_s3", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fake_s3"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeS3()


@pytest.fixture(scope="module", params=["seaweedfs", "moto"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    with getattr(servers, request.param)() as server:
        connection = ConnectionConfig(
            region="us-east-1",
            endpoint_url=server.endpoint,
            access_key_id="test",
            secret_access_key="test",  # noqa: S106 - emulators take anything
        )
        made = client_for(connection, "s3")
        servers.when_ready(lambda: made.create_bucket(Bucket=BUCKET))
        yield request.param, made


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_fake_answers_as_others_do(scenario: Callable[[Store], None], server: tuple[str, Any]) -> None:
    name, client = server
    faked = outcome(scenario, fake())

    assert outcome(scenario, client) == OTHERWISE.get((name, scenario), faked)
