"""Checks what a sink needs, without a row being written: its destination, and the permission to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sluice.cli.checks.findings import Findings
from sluice.cli.checks.identity import Identity, find_identity
from sluice.destinations.common.bucket import split_s3_path
from sluice.destinations.files.layout import Layout
from sluice.destinations.http.destination import HttpDestination
from sluice.destinations.registry import read_sink
from sluice.errors import SluiceError

__all__ = ["check_connection", "check_sink"]

_WRITES: Final = "it would write"
_NO_UPLOAD: Final = "sluice-check"


def check_sink(findings: Findings, options: Mapping[str, str]) -> None:
    """Checks the destination of a sink.

    Args:
        options: of the sink, which have been read without a problem.
    """
    given = {key.lower(): value for key, value in options.items()}
    name = given["destination"]
    path = given.get("deadletterpath", "")
    service = name.lower()
    is_in_s3 = service in ("files", "s3") and given["path"].startswith("s3://")
    is_known = is_in_s3 or service in _DESCRIBED
    if is_known or path.startswith("s3://"):
        identity = find_identity(findings)
        if identity is None:
            return
        if is_in_s3:
            _s3(findings, identity, given)
        elif is_known:
            _check_described(service, findings, identity, given)
        if path.startswith("s3://"):
            bucket, prefix = split_s3_path(path)
            resource = f"arn:{identity.partition}:s3:::{bucket}/{prefix}*"
            identity.may("s3:PutObject", resource, why=_WRITES)
    if service == "http":
        destination: Any = getattr(read_sink(options), "destination", None)
        check_connection(findings, destination)
        if given.get("auth", "none").lower() != "none" or "bearertokenfile" in given:
            _check_credentials(findings, destination)
    elif not is_known:
        findings.add(f"destination {name}", "unknown", "its options are fine; only writing shows more")


class _Described(NamedTuple):
    """What a sink writes to, and the call that describes it.

    Attributes:
        operation: the call.
        field: of its answer, which holds the description.
        arn, status: of the description; the status is empty if it has none.
        resource: of an ARN that is not known.
        write: the operation that writes.
    """

    operation: str
    field: str
    arn: str
    status: str
    resource: str
    write: str


_DESCRIBED: Final[Mapping[str, _Described]] = {
    "kinesis": _Described(
        "DescribeStreamSummary",
        "StreamDescriptionSummary",
        "StreamARN",
        "StreamStatus",
        "stream/",
        "PutRecords",
    ),
    "firehose": _Described(
        "DescribeDeliveryStream",
        "DeliveryStreamDescription",
        "DeliveryStreamARN",
        "DeliveryStreamStatus",
        "deliverystream/",
        "PutRecordBatch",
    ),
    "dynamodb": _Described("DescribeTable", "Table", "TableArn", "TableStatus", "table/", "BatchWriteItem"),
    "sqs": _Described("GetQueueAttributes", "Attributes", "QueueArn", "", "", "SendMessage"),
}


def _address(service: str, given: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
    """The name of what a sink writes to, or its ARN, and the parameters of the call that describes it."""
    match service:
        case "kinesis" if arn := given.get("streamarn"):
            return arn, {"StreamARN": arn}
        case "kinesis":
            return given["streamname"], {"StreamName": given["streamname"]}
        case "firehose":
            return given["deliverystream"], {"DeliveryStreamName": given["deliverystream"]}
        case "dynamodb":
            return given["tablename"], {"TableName": given["tablename"]}
    url = given["queueurl"]
    return url.rpartition("/")[2], {"QueueUrl": url, "AttributeNames": ["QueueArn"]}


def _check_described(service: str, findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    described, (name, address) = _DESCRIBED[service], _address(service, given)
    found = findings.attempt(
        service,
        described.operation,
        name,
        address,
        read=lambda answer: dict(answer[described.field]),
        show=lambda description: str(description.get(described.status, "allowed")),
        if_denied="unknown",
    )
    if service == "kinesis" and given.get("aggregate", "").lower() == "true":
        request = {**address, "MaxResults": 1}
        findings.attempt("kinesis", "ListShards", name, request, read=lambda answer: len(answer["Shards"]))
    where = f"arn:{identity.partition}:{service}:{findings.connection.region or '*'}:*:{described.resource}"
    unknown = name if name.startswith("arn:") else f"{where}{name}"
    for write in _writes(service, given):
        identity.may(f"{service}:{write}", (found or {}).get(described.arn, unknown), why=_WRITES)


def _writes(service: str, given: Mapping[str, str]) -> Sequence[str]:
    """The actions that write. For a transaction of DynamoDB, they are the actions in it."""
    updates = given.get("writemode", "").lower() == "update"
    if service != "dynamodb" or not (updates or "condition" in given):
        return [_DESCRIBED[service].write]
    deletes = ["DeleteItem"] if "operationcolumn" in given else []
    return ["UpdateItem" if updates else "PutItem", *deletes]


def _s3(findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    layout = Layout(given["path"])
    bucket, key = layout.bucket, f"{layout.manifests}{_NO_UPLOAD}"

    def attempt(operation: str, action: str, more: Mapping[str, Any], **fine: str) -> bool:
        found = findings.attempt(
            "s3",
            operation,
            layout.path,
            {"Bucket": bucket, **more},
            action=action,
            read=lambda _answer: True,
            fine=fine,
        )
        return found is not None

    can_list = attempt("ListObjectsV2", "s3:ListBucket", {"Prefix": layout.manifests, "MaxKeys": 1})
    attempt("ListMultipartUploads", "s3:ListBucketMultipartUploads", {"Prefix": layout.root, "MaxUploads": 1})
    # Neither exists. Only callers with the permission get that answer.
    upload = {"Key": key, "UploadId": _NO_UPLOAD}
    attempt("AbortMultipartUpload", "s3:AbortMultipartUpload", upload, NoSuchUpload="allowed")
    if can_list:
        attempt("GetObject", "s3:GetObject", {"Key": key}, NoSuchKey="allowed")
    else:
        # S3 says 403 for what does not exist to those who may not list.
        text = "not tried, as S3 tells nothing of objects to those who may not list them"
        findings.add(f"s3:GetObject on {layout.path}", "unknown", text, "s3:GetObject")
    resource = f"arn:{identity.partition}:s3:::{bucket}/{layout.root}*"
    identity.may("s3:PutObject", resource, why=_WRITES)
    identity.may("s3:DeleteObject", resource, why="it would delete")


def check_connection(findings: Findings, destination: HttpDestination) -> None:
    """Connects as a task does, with its certificates and its proxy."""
    try:
        accepted = destination.check_connection()
    except (OSError, SluiceError) as error:
        findings.add(f"connection to {destination.name}", "failed", f"{type(error).__name__}: {error}")
        return
    findings.add(f"connection to {destination.name}", "ok", f"{accepted} accepts it; no request was sent")


def _check_credentials(findings: Findings, destination: HttpDestination) -> None:
    """Tries what has to be asked for: signing keys, tokens."""
    try:
        destination.check_credentials()
    except SluiceError as error:
        findings.add("credentials of requests", "failed", str(error))
    else:
        findings.add("credentials of requests", "ok", "found; only a request shows what they permit")
