"""S3 in memory, in the place of the SDK's client: one bucket, with faults at any call."""

# ruff: noqa: N803 - parameters have the SDK's names

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from botocore import exceptions as sdk

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common.object_settings import ObjectSettings
from sluice.destinations.files import S3Destination
from sluice.destinations.files.committed_files import committed_urls
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.s3_store import S3Store
from sluice.destinations.files.writer import FileSettings
from sluice.retry import Backoff, Retrier

PATH = "s3://lake/events"
PAGE = 3  # entries of a page: few, so that listings have several pages
CONNECTION = ConnectionConfig(region="eu-west-1")


_uploads = itertools.count()


class Crash(BaseException):
    """The process is killed: the calls after this one never happen."""


class Inline(Executor):
    """Runs everything where it is submitted, so that the order of calls is fixed."""

    def __init__(self, threads: int = 1) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return future


def refusal(code: str, status: int) -> sdk.ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return sdk.ClientError(answer, "Any")


@dataclass
class FakeUpload:
    """A multipart upload that is neither completed nor aborted."""

    key: str
    algorithm: str | None  # of the checksums, if the upload names one
    parts: dict[int, tuple[bytes, dict[str, str]]] = field(default_factory=dict)


OF_ANY_CALL = {"ExpectedBucketOwner", "RequestPayer"}
OF_NEW_OBJECTS = {"ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled", "ACL", "StorageClass"}


@dataclass
class FakeS3:
    """The calls of the SDK's client that the destination makes, as strict as S3's API reference.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html: parts may have checksums
    of the algorithm that the upload named and of no other, and have to where it is not CRC64NVME.

    `fault` is called with the number and the operation of each call. It returns None, or the fault:

    - ``crash-before``, ``crash-after``: the process dies before or after the call takes effect.
    - ``lost``: the call takes effect, and the connection breaks.
    - ``late``: the connection breaks, and the call takes effect `delay` calls later.
    - An exception, which is raised; the call has no effect.
    """

    fault: Callable[[int, str], str | Exception | None] = lambda _number, _operation: None
    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, FakeUpload] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    conditional: str = "yes"  # what it does with If-None-Match; or ``ignored``, or the code that it answers
    sdk_checksum: str | None = "CRC32"  # that the SDK adds to a part by itself, from 1.36 on
    lists_by_prefix: bool = True  # uploads; some stores answer with none
    encodes_keys: bool = True  # those of uploads; SeaweedFS says so, and does not
    idempotent: bool = False  # a second completion succeeds, as in S3 for some minutes
    delay: int = 3
    changed: Callable[[], None] = lambda: None  # called when a call has taken effect
    modified: dict[str, datetime] = field(default_factory=dict)  # keys without: now
    dead: bool = False
    _completed: set[str] = field(default_factory=set)
    _late: list[tuple[int, Callable[[], Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = lambda _connection, _service: self

    def __getattr__(self, method: str) -> Callable[..., Any]:
        do = getattr(type(self), f"_do_{method}", None)
        if do is None:
            raise AttributeError(method)
        return lambda **parameters: self._answer(method, lambda: do(self, **parameters), parameters)

    def apply_late_calls(self, *, calls: int = 0) -> None:
        """Late calls take effect now, or after `calls` more calls."""
        late = [(len(self.calls) + calls, effect) for _, effect in self._late]
        self._late = late if calls else []
        for _, effect in [] if calls else late:
            self._arrive(effect)

    def _answer(self, method: str, effect: Callable[[], Any], parameters: dict[str, Any]) -> Any:
        if self.dead:
            raise Crash
        assert parameters.pop("Bucket") == "lake"
        settings = OF_ANY_CALL
        if method in ("create_multipart_upload", "put_object"):
            settings = settings | OF_NEW_OBJECTS
        for entry in [entry for entry in self._late if entry[0] <= len(self.calls)]:
            self._late.remove(entry)
            self._arrive(entry[1])
        self.calls.append((method, dict(parameters)))
        for name in settings & set(parameters):
            del parameters[name]
        fault = self.fault(len(self.calls), method)
        if isinstance(fault, Exception):
            raise fault
        if fault == "crash-before":
            self.dead = True
            raise Crash
        if fault == "late":
            self._late.append((len(self.calls) + self.delay - 1, effect))
            raise sdk.ConnectionClosedError(endpoint_url="http://s3.test")
        answer = effect()
        self.changed()
        if fault == "crash-after":
            self.dead = True
            raise Crash
        if fault == "lost":
            raise sdk.ConnectionClosedError(endpoint_url="http://s3.test")
        return answer

    def _arrive(self, effect: Callable[[], Any]) -> None:
        with contextlib.suppress(sdk.ClientError):  # the caller is gone
            effect()
        self.changed()

    # --- uploads --------------------------------------------------------------------------------------

    def _do_create_multipart_upload(
        self, *, Key: str, ContentType: str, ChecksumAlgorithm: str | None = None
    ) -> Any:
        assert ContentType
        upload = f"upload-{next(_uploads)}"
        self.uploads[upload] = FakeUpload(Key, ChecksumAlgorithm)
        return {"UploadId": upload}

    def _do_upload_part(
        self, *, Key: str, UploadId: str, PartNumber: int, Body: bytes, ChecksumAlgorithm: str | None = None
    ) -> Any:
        upload = self._upload(Key, UploadId)
        if not 1 <= PartNumber <= 10_000:
            raise refusal("InvalidArgument", 400)
        sent = ChecksumAlgorithm or self.sdk_checksum
        if upload.algorithm and sent != upload.algorithm:
            raise refusal("InvalidRequest", 400)
        answer = {"ETag": f'"{hash(Body)}"'}
        if sent:
            answer |= {f"Checksum{sent}": f"{sent} of {hash(Body)}", "ChecksumType": "COMPOSITE"}
        upload.parts[PartNumber] = Body, answer
        return answer

    def _do_complete_multipart_upload(self, *, Key: str, UploadId: str, MultipartUpload: Any) -> Any:
        if self.idempotent and UploadId in self._completed:
            return {"ETag": "again"}
        upload = self._upload(Key, UploadId)
        named = MultipartUpload["Parts"]
        if not named:
            raise refusal("MalformedXML", 400)
        numbers = [part["PartNumber"] for part in named]
        if numbers != sorted(set(numbers)):
            raise refusal("InvalidPartOrder", 400)
        assert numbers == sorted(upload.parts)  # S3 would leave the others out
        for part in named:
            stored = upload.parts.get(part["PartNumber"])
            if stored is None or stored[1]["ETag"] != part["ETag"]:
                raise refusal("InvalidPart", 400)
            checksums = {name: part[name] for name in part if name.startswith("Checksum")}
            wanted = f"Checksum{upload.algorithm}"
            if set(checksums) - {wanted} or checksums.get(wanted, stored[1].get(wanted)) != stored[1].get(
                wanted
            ):
                raise refusal("InvalidPart", 400)
            if upload.algorithm not in (None, "CRC64NVME") and not checksums:
                raise refusal("InvalidRequest", 400)
        bodies = [upload.parts[number][0] for number in numbers]
        if any(len(body) < 5 * 1024 * 1024 for body in bodies[:-1]):
            raise refusal("EntityTooSmall", 400)
        self.objects[Key] = b"".join(bodies)
        del self.uploads[UploadId]
        self._completed.add(UploadId)
        return {"ETag": "whole"}

    def _do_abort_multipart_upload(self, *, Key: str, UploadId: str) -> Any:
        self._upload(Key, UploadId)
        del self.uploads[UploadId]
        return {}

    def _do_list_multipart_uploads(self, *, EncodingType: str, **place: str) -> Any:
        assert EncodingType == "url"
        prefix = place.get("Prefix", "")
        if prefix and not self.lists_by_prefix:
            return {"IsTruncated": False}
        found = sorted((upload.key, name) for name, upload in self.uploads.items())
        key, upload = place.get("KeyMarker", ""), place.get("UploadIdMarker")
        # Without an id, uploads of the key itself are not listed.
        found = [each for each in found if (each > (key, upload) if upload else each[0] > key)]
        found = [each for each in found if each[0].startswith(prefix)]
        page = [(quote_plus(key, "/") if self.encodes_keys else key, name) for key, name in found[:PAGE]]
        answer: dict[str, Any] = {
            "Uploads": [{"Key": key, "UploadId": upload} for key, upload in page],
            "IsTruncated": len(found) > PAGE,
            "EncodingType": "url",
        }
        if len(found) > PAGE:
            answer |= {"NextKeyMarker": page[-1][0], "NextUploadIdMarker": page[-1][1]}
        return answer

    def _upload(self, key: str, upload: str) -> FakeUpload:
        if upload not in self.uploads or self.uploads[upload].key != key:
            raise refusal("NoSuchUpload", 404)
        return self.uploads[upload]

    # --- objects --------------------------------------------------------------------------------------

    def _do_put_object(
        self,
        *,
        Key: str,
        Body: bytes,
        ContentType: str,
        IfNoneMatch: str = "",
        ChecksumAlgorithm: str | None = None,
    ) -> Any:
        assert ContentType in {"application/json", "application/x-ndjson"}  # manifests, dead letters
        assert ChecksumAlgorithm is None or ChecksumAlgorithm.isupper()
        if IfNoneMatch and self.conditional == "yes" and Key in self.objects:
            raise refusal("PreconditionFailed", 412)
        if IfNoneMatch and self.conditional.isdigit():
            raise refusal(self.conditional, int(self.conditional))
        if IfNoneMatch and self.conditional not in ("yes", "ignored"):
            raise refusal(self.conditional, 501 if self.conditional == "NotImplemented" else 400)
        self.objects[Key] = Body
        return {"ETag": "stored"}

    def _do_get_object(self, *, Key: str) -> Any:
        if Key not in self.objects:
            raise refusal("NoSuchKey", 404)
        return {"ETag": "stored", "Body": io.BytesIO(self.objects[Key])}

    def _do_head_object(self, *, Key: str) -> Any:
        if Key not in self.objects:
            raise refusal("404", 404)
        return {"ETag": "stored"}

    def _do_delete_object(self, *, Key: str) -> Any:
        self.objects.pop(Key, None)
        return {}

    def _do_list_objects_v2(self, *, Prefix: str, ContinuationToken: str = "") -> Any:
        found = [key for key in sorted(self.objects) if key.startswith(Prefix) and key > ContinuationToken]
        page = found[:PAGE]
        answer: dict[str, Any] = {
            "Contents": [
                {
                    "Key": key,
                    "Size": len(self.objects[key]),
                    "LastModified": self.modified.get(key) or datetime.now(timezone.utc),
                }
                for key in page
            ],
            "IsTruncated": len(found) > PAGE,
        }
        if len(found) > PAGE:
            answer["NextContinuationToken"] = page[-1]
        return answer

    # --- for assertions -------------------------------------------------------------------------------

    @property
    def data(self) -> set[str]:
        return {key for key in self.objects if "/_sluice/" not in key}

    @property
    def pending(self) -> set[str]:
        return {key for key in self.objects if "/pending/" in key}


BACKOFF = Backoff(max_retries=7, base=0.5, max=10.0, exponent=2.0)
"""Of commits: bounded by a number, because no time passes here."""


def retrier() -> Retrier:
    return Retrier(sleep=lambda _: None, jitter=lambda: 0.0)


def destination(
    s3: FakeS3, *, pause: Callable[[float], None] = lambda _seconds: None, **settings: Any
) -> S3Destination:
    made = FileSettings(**({"file_format": "jsonl", "compression": "none"} | settings))
    return S3Destination(Layout(PATH), bucket(s3), made, executor=Inline, pause=pause)


def bucket(s3: FakeS3, *, is_known: bool = True, unsafe: bool = False, **settings: Any) -> S3Store:
    """`is_known`: the process has seen that the store has conditional writes, if it has."""
    made = S3Store(
        "lake",
        CONNECTION,
        ObjectSettings(**settings),
        allows_unsafe_commits=unsafe,
        client=s3.client,
        retrier=retrier(),
    )
    if is_known and s3.conditional == "yes":
        fault, calls, dead, late = s3.fault, s3.calls, s3.dead, s3._late
        s3.fault, s3.calls, s3.dead, s3._late = (lambda _number, _operation: None), [], False, []
        made.check_conditional_writes("")
        s3.fault, s3.calls, s3.dead, s3._late = fault, calls, dead, late
    return made


def committed_keys(s3: FakeS3) -> list[str]:
    """The keys of the files that the manifests list."""
    return [url.removeprefix("s3://lake/") for url in committed_urls(bucket(s3), Layout(PATH))]


def committed_rows(s3: FakeS3) -> Iterator[dict[str, Any]]:
    """The rows of the files that the manifests list."""
    for key in committed_keys(s3):
        body = s3.objects[key]
        if key.endswith(".jsonl"):
            yield from (json.loads(line) for line in body.splitlines())
        else:
            yield from pq.read_table(pa.BufferReader(body)).to_pylist()
