"""One bucket as destination ``s3`` needs it: a dozen calls, each retried, with the library's own errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

from sluice.aws.clients import client_for, endpoint_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.errors import DamagedAnswerError, translate
from sluice.errors import ServiceError
from sluice.retry import Backoff, Retrier

__all__ = ["Store"]

T = TypeVar("T")

_BACKOFF: Final = Backoff(max_retries=6, base=0.2, max=5.0, exponent=2.0)
_JSON: Final = "application/json"
# The object or upload is not there; HEAD has no body to say it in.
_ABSENT: Final = frozenset({"NoSuchKey", "NoSuchUpload", "404"})
_EXISTS: Final = frozenset({"PreconditionFailed", "412"})
# Servers (and SDKs) from before conditional writes.
_UNCONDITIONAL: Final = frozenset({"NotImplemented", "501", "ParamValidationError"})
_CONFLICT: Final = frozenset({"ConditionalRequestConflict", "OperationAborted", "409"})


class Store:
    """A bucket.

    Every method raises ServiceError when S3 refuses, or does not answer however often it is asked, and
    OptionError when no client can be made from the connection options.

    Args:
        bucket: its name.
        connection: how to reach it.
        client: makes the SDK's client; replaced in tests.
        retrier: how throttling and lost connections are waited out.
    """

    def __init__(
        self,
        bucket: str,
        connection: ConnectionConfig,
        *,
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        retrier: Retrier | None = None,
    ) -> None:
        self.bucket = bucket
        self._connection = connection
        self._make_client = client
        self._retrier = retrier or Retrier()

    # --- multipart uploads ----------------------------------------------------------------------------

    def create_upload(self, key: str, content_type: str) -> str:
        """Starts an upload; returns its id. An answer that is lost leaves an upload behind, for the sweep."""
        answer = self._call("CreateMultipartUpload", key, Key=key, ContentType=content_type)
        return str(answer["UploadId"])

    def upload_part(self, key: str, upload: str, number: int, body: bytes) -> dict[str, Any]:
        """Returns what completing will ask for: number, ETag and the checksums that the SDK has agreed on."""
        answer = self._call("UploadPart", key, Key=key, UploadId=upload, PartNumber=number, Body=body)
        sums = {
            name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"
        }
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def complete_upload(self, key: str, upload: str, parts: Sequence[Mapping[str, Any]]) -> None:
        """Makes the object. Done before, it stays done: S3 forgets an upload when it is completed."""
        try:
            # A good status may come with an error inside, or with nothing: the ETag says that it is done.
            self._call(
                "CompleteMultipartUpload",
                key,
                needed="ETag",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": [dict(part) for part in parts]},
            )
        except ServiceError as error:
            if error.code not in _ABSENT or not self.exists(key):
                raise

    def abort_upload(self, key: str, upload: str) -> None:
        """Forgets an upload and its parts; one that is not there is none any more."""
        try:
            self._call("AbortMultipartUpload", key, Key=key, UploadId=upload)
        except ServiceError as error:
            if error.code not in _ABSENT:
                raise

    def uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Key and id of all uploads under way below `prefix`."""
        place: dict[str, Any] = {}
        while True:
            answer = self._call(
                "ListMultipartUploads",
                prefix,
                needed="IsTruncated",
                Prefix=prefix,
                EncodingType="url",
                **place,
            )
            encoded = answer.get("EncodingType") == "url"
            for each in answer.get("Uploads", ()):
                yield (unquote_plus(each["Key"]) if encoded else each["Key"]), each["UploadId"]
            marker = answer.get("NextKeyMarker")
            if not answer["IsTruncated"] or not marker:
                return
            place = {"KeyMarker": unquote_plus(marker) if encoded else marker}
            if answer.get("NextUploadIdMarker"):
                place["UploadIdMarker"] = answer["NextUploadIdMarker"]

    # --- objects --------------------------------------------------------------------------------------

    def put(self, key: str, body: bytes) -> None:
        """Puts a small object, whatever is there."""
        self._call("PutObject", key, Key=key, Body=body, ContentType=_JSON)

    def put_new(self, key: str, body: bytes) -> bool:
        """Puts a small object unless there is one; whether it did.

        The server decides, where it knows conditional writes. An attempt whose answer was lost may be
        what is there.
        """
        try:
            self._call("PutObject", key, Key=key, Body=body, ContentType=_JSON, IfNoneMatch="*")
        except ServiceError as error:
            if error.code in _EXISTS:
                return False
            if error.code not in _UNCONDITIONAL:
                raise
            if self.exists(key):
                return False
            self.put(key, body)
        return True

    def get(self, key: str) -> bytes | None:
        """The content of an object; None where there is none."""
        try:
            answer = self._call("GetObject", key, finish=lambda answer: answer["Body"].read(), Key=key)
        except ServiceError as error:
            if error.code in _ABSENT:
                return None
            raise
        return bytes(answer)

    def exists(self, key: str) -> bool:
        try:
            self._call("HeadObject", key, Key=key)
        except ServiceError as error:
            if error.code in _ABSENT:
                return False
            raise
        return True

    def delete(self, key: str) -> None:
        """Removes an object, if it is there."""
        self._call("DeleteObject", key, Key=key)

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys of all objects below `prefix`, in their order."""
        place: dict[str, Any] = {}
        while True:
            answer = self._call("ListObjectsV2", prefix, needed="IsTruncated", Prefix=prefix, **place)
            yield from (each["Key"] for each in answer.get("Contents", ()))
            if not answer["IsTruncated"]:
                return
            place = {"ContinuationToken": answer["NextContinuationToken"]}

    def _call(
        self,
        operation: str,
        target: str,
        *,
        needed: str | None = None,
        finish: Callable[[Any], Any] = lambda answer: answer,
        **parameters: Any,
    ) -> Any:
        """Calls an operation until it is answered.

        Args:
            operation: as S3 spells it.
            target: key or prefix, for messages.
            needed: a field without which the answer is damaged.
            finish: reads what there is to read of the answer.
            parameters: of the call, beside the bucket.
        """
        method = "".join(f"_{c.lower()}" if c.isupper() else c for c in operation).lstrip("_")

        def attempt() -> Any:
            client = self._make_client(self._connection, "s3")
            try:
                answer = getattr(client, method)(Bucket=self.bucket, **parameters)
                return finish(_whole(answer, needed))
            except Exception as error:  # noqa: BLE001 - whatever the SDK raises, it leaves as a ServiceError
                raise self._translated(error, operation, target) from None

        return self._retrier.call(_BACKOFF, attempt)

    def _translated(self, error: Exception, operation: str, target: str) -> ServiceError:
        translated = translate(
            error,
            operation=operation,
            target=f"s3://{self.bucket}/{target}",
            endpoint=endpoint_for(self._connection, "s3"),
        )
        if translated.code in _UNCONDITIONAL:
            translated.retryable = False  # by its status, a failure of the server
        elif translated.code in _CONFLICT:
            translated.retryable = True
        return translated


def _whole(answer: Any, needed: str | None) -> Any:
    if needed is not None and needed not in answer:
        raise DamagedAnswerError(f"the answer has no {needed}")
    return answer
