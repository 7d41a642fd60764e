"""The calls of S3 that destination ``s3`` and dead letters make, retried, with the library's own errors."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from botocore import xform_name

from sluice.aws.calling.clients import client_for, endpoint_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import EXPIRED_CREDENTIALS, UNKNOWN_CREDENTIALS, DamagedAnswerError, translate
from sluice.aws.wire.sdk_deadlines import read_stream
from sluice.destinations.common.object_settings import NO_CHECKSUMS, ObjectSettings, hint_for
from sluice.errors import OptionError, ServiceError
from sluice.instants import micros_from_datetime
from sluice.retry import Backoff, Retrier, patient

__all__ = ["CONCURRENT_REQUESTS", "Bucket", "StoredObject", "split_s3_path"]

_BACKOFF: Final = Backoff(max_retries=8, base=0.2, max=5.0, exponent=2.0)
_CHECK_BACKOFF: Final = replace(_BACKOFF, max_retries=3, give_up_after=10.0)
"""For a query that starts, which does not wait long for what may go without."""
_JSON: Final = "application/json"
_DIGEST_OF_NOTHING: Final = "1B2M2Y8AsgTpgAmY7PhCfg=="
"""The MD5 of no bytes at all, as S3 takes it."""

CONCURRENT_REQUESTS: Final = 16
"""How many requests are in flight at a time when many objects are read or many uploads completed."""

# Error codes. An answer to HEAD has no body, so its code is the HTTP status.
_NOT_FOUND: Final = frozenset({"NoSuchKey", "NoSuchUpload", "404"})
_EXISTS: Final = frozenset({"PreconditionFailed", "412"})
# Of stores that lack a feature: another attempt will not change that, although 501 is a server's failure.
_NOT_IMPLEMENTED: Final = frozenset({"NotImplemented", "501"})
# AWS answers BadDigest to a body that its digest does not fit; other stores have other words.
_WRONG_DIGEST: Final = re.compile(r".*(digest|checksum|md5).*", re.IGNORECASE)
# A field that S3's answers have, and those of a proxy in front of it do not. Without it an answer is damaged.
_REQUIRED: Final[Mapping[str, str]] = {
    "CreateMultipartUpload": "UploadId",
    # S3's own answer with status 200 may hold an error, or nothing. Only an ETag shows success.
    "CompleteMultipartUpload": "ETag",
    **dict.fromkeys(("UploadPart", "PutObject", "GetObject", "HeadObject"), "ETag"),
    **dict.fromkeys(("ListMultipartUploads", "ListObjectsV2"), "IsTruncated"),
}
# Another write to the same key is in flight.
_CONFLICT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})


# What this process has found out: buckets with conditional writes, and prefixes that it has looked for in
# all uploads of a bucket.
_conditional: Final[set[tuple[Hashable, ...]]] = set()
_listed_whole: Final[set[tuple[Hashable, ...]]] = set()


def split_s3_path(path: str) -> tuple[str, str]:
    """The bucket of ``s3://bucket/prefix`` and the prefix, which ends in a slash unless it is empty."""
    bucket, _, prefix = path.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


class StoredObject(NamedTuple):
    """An object: its size in bytes, and when it was written (microseconds since the epoch)."""

    key: str
    size: int
    modified: int


class Bucket:
    """One bucket.

    Every method raises ServiceError when S3 refuses a call or does not answer any attempt, and OptionError
    when no client can be made from the connection options.

    Args:
        name: of the bucket.
        connection: how to reach S3.
        settings: how objects are stored, and who may answer.
        allows_unsafe_commits: `put_if_absent` works on stores without conditional writes too, where two
            writers at the same moment may both succeed.
        client: makes the SDK's client; replaced in tests.
        retrier: how throttling and lost connections are waited out.
        patience: seconds; None: until a number of retries is used up, within about 20 s.
    """

    def __init__(  # noqa: PLR0913 - two are for tests
        self,
        name: str,
        connection: ConnectionConfig,
        settings: ObjectSettings = ObjectSettings(),  # noqa: B008 - frozen
        *,
        allows_unsafe_commits: bool = False,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        retrier: Retrier | None = None,
        patience: float | None = None,
    ) -> None:
        self._name = name
        self._backoff = _BACKOFF if patience is None else patient(patience)
        self._connection = replace(connection, sends_checksums=settings.checksum_algorithm != NO_CHECKSUMS)
        self._settings = settings
        self._allows_unsafe_commits = allows_unsafe_commits
        self._make_client = client
        self._retrier = retrier or Retrier()
        self._identity = (client, self._connection, name)
        self._has_answered = False  # with credentials that S3 took

    # --- multipart uploads ----------------------------------------------------------------------------

    def create_upload(self, key: str, content_type: str) -> str:
        """Starts an upload; returns its id. If the answer is lost, that upload is an orphan."""
        answer = self._call("CreateMultipartUpload", key, is_data=True, ContentType=content_type)
        return str(answer["UploadId"])

    def upload_part(self, key: str, upload_id: str, number: int, body: bytes) -> dict[str, Any]:
        """Returns what `complete_upload` needs: the number, the ETag, and the checksum that the upload names.

        S3 refuses checksums of an algorithm that the upload did not name. The SDK may send others by itself.
        """
        answer = self._call("UploadPart", key, UploadId=upload_id, PartNumber=number, Body=body)
        checksum = f"Checksum{self._settings.named_checksum}"
        named = {checksum: answer[checksum]} if checksum in answer else {}
        return {"PartNumber": number, "ETag": answer["ETag"], **named}

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Mapping[str, Any]]) -> None:
        """Makes the object. Does nothing if the upload was completed before, and the object exists."""
        made_of = {"Parts": [dict(part) for part in parts]}
        try:
            self._call("CompleteMultipartUpload", key, UploadId=upload_id, MultipartUpload=made_of)
        except ServiceError as error:
            if error.code not in _NOT_FOUND or not self.exists(key):
                raise

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Removes an upload and its parts, if it exists. Tidies up, so it has less patience than the rest."""
        try:
            self._call("AbortMultipartUpload", key, backoff=_BACKOFF, UploadId=upload_id)
        except ServiceError as error:
            if error.code not in _NOT_FOUND:
                raise

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Key and id of every unfinished upload below `prefix`.

        Some stores list none by prefix. So a process that finds none lists the whole bucket, the first time.
        """
        found = list(self._uploads(prefix, Prefix=prefix))
        place = (*self._identity, prefix)
        if not found and prefix and place not in _listed_whole:
            found = [each for each in self._uploads(prefix) if each[0].startswith(prefix)]
            _listed_whole.add(place)
        return iter(found)

    def _uploads(self, target: str, **prefix: Any) -> Iterator[tuple[str, str]]:
        page: dict[str, Any] = {}
        while True:
            answer = self._call("ListMultipartUploads", target, EncodingType="url", **prefix, **page)
            is_encoded = answer.get("EncodingType") == "url"
            for each in answer.get("Uploads", ()):
                yield _decoded(each["Key"], is_encoded=is_encoded), each["UploadId"]
            marker = answer.get("NextKeyMarker")
            if not answer["IsTruncated"] or not marker:
                return
            page = {"KeyMarker": _decoded(marker, is_encoded=is_encoded)}
            if answer.get("NextUploadIdMarker"):
                page["UploadIdMarker"] = answer["NextUploadIdMarker"]

    # --- objects --------------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        body: bytes,
        content_type: str = _JSON,
        *,
        is_data: bool = False,
        backoff: Backoff | None = None,
    ) -> None:
        """Puts an object in one request; replaces an existing one. `is_data`: it holds rows."""
        self._call("PutObject", key, is_data=is_data, backoff=backoff, Body=body, ContentType=content_type)

    def check_puttable(self, key: str) -> None:
        """Raises ServiceError if `put` may not put this object. Puts none.

        The body is sent with the digest of another one. Where S3 would take the object, it refuses the body.
        An endpoint that checks no digest takes the object, which is deleted then.
        """
        try:
            self._call("PutObject", key, backoff=_CHECK_BACKOFF, Body=b"{}", ContentMD5=_DIGEST_OF_NOTHING)
        except ServiceError as error:
            if _WRONG_DIGEST.fullmatch(error.code) is None:
                raise
        else:
            self.delete(key)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Puts an object in one request, unless the key exists; returns whether it did.

        S3 decides this (``If-None-Match``), so one of two writers succeeds. The existing object may be that
        of an earlier attempt whose answer was lost.
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
        """
        if self._allows_unsafe_commits:
            if self.exists(key):
                return False
            self.put(key, body)
            return True
        return self._put_if_none(key, body, self._backoff)

    def check_conditional_writes(self, prefix: str) -> None:
        """Finds out, once a process, whether S3 keeps the promise of `put_if_absent`.

        Puts an object and deletes it.

        Args:
            prefix: of the key.

        Raises:
            OptionError: the store overwrites what exists, or answers something else than S3 does.
            ServiceError: S3 did not answer, or refused the first write.
        """
        if self._allows_unsafe_commits or self._identity in _conditional:
            return
        key = f"{prefix}.sluice-check-{uuid.uuid4().hex}"
        try:
            found = self._find_unconditional(key)
        finally:
            with contextlib.suppress(ServiceError):
                self.delete(key)
        if found:
            raise OptionError(
                f"s3://{self._name} has no conditional writes (If-None-Match: {found}), so two drivers could "
                "commit one batch twice. Use a store that has them. If only one driver ever writes to this "
                "path, 'allowUnsafeCommits' true goes without"
            )
        _conditional.add(self._identity)

    def _find_unconditional(self, key: str) -> str:
        """What a store without conditional writes does with one; empty if it has them."""
        try:
            self._put_if_none(key, b"", _CHECK_BACKOFF)
            return "it replaced an object" if self._put_if_none(key, b"", _CHECK_BACKOFF) else ""
        except ServiceError as error:
            if error.retryable:
                raise
            self.put(key, b"", backoff=_CHECK_BACKOFF)  # raises where the refusal was about something else
            return f"it answered {error.code}"

    def _put_if_none(self, key: str, body: bytes, backoff: Backoff) -> bool:
        try:
            self._call("PutObject", key, backoff=backoff, Body=body, ContentType=_JSON, IfNoneMatch="*")
        except ServiceError as error:
            if error.code in _EXISTS:
                return False
            raise
        return True

    def get(self, key: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        try:
            answer = self._call("GetObject", key, read=lambda answer: read_stream(answer["Body"]))
        except ServiceError as error:
            if error.code == "NoSuchKey":  # a gateway in front of S3 may answer 404 for what exists
                return None
            raise
        return bytes(answer)

    def get_listed(self, key: str) -> bytes:
        """The content of an object that exists. NoSuchKey is retried: gateways answer it in error.

        Raises:
            ServiceError: S3 has not given it out.
        """

        def attempt() -> bytes:
            content = self.get(key)
            if content is None:
                message = f"s3://{self._name}/{key} exists, and GetObject answers NoSuchKey"
                raise ServiceError(message, operation="GetObject", code="NoSuchKey", retryable=True)
            return content

        return self._retrier.call(_CHECK_BACKOFF, attempt)

    def exists(self, key: str) -> bool:
        try:
            self._call("HeadObject", key)
        except ServiceError as error:
            if error.code in _NOT_FOUND:
                return False
            raise
        return True

    def delete(self, key: str) -> None:
        """Deletes an object, if it exists."""
        self._call("DeleteObject", key)

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of all objects below `prefix`, sorted."""
        return (each.key for each in self.objects(prefix))

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """All objects below `prefix`, sorted by key."""
        page: dict[str, Any] = {}
        while True:
            answer = self._call("ListObjectsV2", prefix, Prefix=prefix, **page)
            for each in answer.get("Contents", ()):
                yield StoredObject(each["Key"], each["Size"], micros_from_datetime(each["LastModified"]))
            if not answer["IsTruncated"]:
                return
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    def _call(
        self,
        operation: str,
        target: str,
        *,
        read: Callable[[Any], Any] = lambda answer: answer,
        backoff: Backoff | None = None,
        is_data: bool = False,
        **parameters: Any,
    ) -> Any:
        """Calls an operation, with retries.

        Args:
            operation: as S3 spells it.
            target: the key; of a listing, the prefix, for messages alone.
            read: makes the result from the answer; retried with the call.
            backoff: how it is retried; None: as the bucket is.
            is_data: see `ObjectSettings.parameters`.
            parameters: of the call, without the bucket and the key.
        """
        method = xform_name(operation)
        key = {} if operation.startswith("List") else {"Key": target}
        required = _REQUIRED.get(operation)

        def attempt() -> Any:
            client = self._make_client(self._connection, "s3")
            try:
                own = self._settings.parameters(operation, is_data=is_data)
                answer = getattr(client, method)(Bucket=self._name, **key, **own, **parameters)
                self._has_answered = True
                if required is not None and required not in answer:
                    raise DamagedAnswerError(f"the answer has no {required}")  # noqa: TRY301 - retried
                return read(answer)
            except Exception as error:  # noqa: BLE001 - any error of the SDK becomes a ServiceError
                raise self._translated(error, operation, target) from None

        return self._retrier.call(backoff or self._backoff, attempt)

    def _translated(self, error: Exception, operation: str, target: str) -> ServiceError:
        translated = translate(
            error,
            operation=operation,
            target=f"s3://{self._name}/{target}",
            endpoint=endpoint_for(self._connection, "s3"),
        )
        if translated.code in _NOT_IMPLEMENTED:
            translated.retryable = False
        elif translated.code in _CONFLICT:
            translated.retryable = True
        elif not self._connection.has_fixed_credentials:
            # The next attempt loads them anew. Keys that S3 knew before were replaced by others.
            is_replaced = translated.code in UNKNOWN_CREDENTIALS and self._has_answered
            translated.retryable |= translated.code in EXPIRED_CREDENTIALS or is_replaced
        if hint := hint_for(translated.code):
            translated.args = (f"{translated} ({hint})",)
        return translated


def _decoded(key: str, *, is_encoded: bool) -> str:
    """A key in an answer that is said to be encoded. SeaweedFS says so of keys as they are.

    Encoded keys have no "=", which each key with a partition has.
    """
    return unquote_plus(key) if is_encoded and "=" not in key else key
