"""Checks what a sink needs, without a row being written: its destination, and the permission to write."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sluice.cli.checks.findings import Findings
from sluice.cli.checks.identity import Identity, find_identity
from sluice.destinations.common.bucket import split_s3_path
from sluice.destinations.s3.layout import Layout

__all__ = ["check_sink"]

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
    check = _CHECKS.get(name.lower())
    if check is not None or path.startswith("s3://"):
        identity = find_identity(findings)
        if identity is None:
            return
        if check is not None:
            check(findings, identity, given)
        if path.startswith("s3://"):
            _check_s3_dead_letters(identity, path)
    if name.lower() == "http":
        _check_connection(findings, given["url"])
    elif check is None:
        findings.add(f"destination {name}", "unknown", "its options are fine; only writing shows more")
    if path and not path.startswith("s3://"):
        _check_directory(findings, path)


def _region(findings: Findings) -> str:
    return findings.connection.region or "*"


def _kinesis(findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    arn, name = given.get("streamarn"), given.get("streamname")
    address = {"StreamARN": arn} if arn else {"StreamName": name}
    stream = name or str(arn).rpartition("/")[2]
    found = findings.attempt(
        "kinesis",
        "DescribeStreamSummary",
        stream,
        address,
        action="kinesis:DescribeStreamSummary",
        read=lambda answer: dict(answer["StreamDescriptionSummary"]),
        show=lambda summary: str(summary["StreamStatus"]),
        if_denied="unknown",
    )
    if given.get("aggregate", "").lower() == "true":
        findings.attempt(
            "kinesis",
            "ListShards",
            stream,
            {**address, "MaxResults": 1},
            action="kinesis:ListShards",
            read=lambda answer: len(answer["Shards"]),
        )
    resource = arn or (found or {}).get(
        "StreamARN", f"arn:{identity.partition}:kinesis:{_region(findings)}:*:stream/{stream}"
    )
    identity.may("kinesis:PutRecords", resource, why=_WRITES)


def _firehose(findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    stream = given["deliverystream"]
    found = findings.attempt(
        "firehose",
        "DescribeDeliveryStream",
        stream,
        {"DeliveryStreamName": stream},
        action="firehose:DescribeDeliveryStream",
        read=lambda answer: dict(answer["DeliveryStreamDescription"]),
        show=lambda stream: str(stream["DeliveryStreamStatus"]),
        if_denied="unknown",
    )
    unknown = f"arn:{identity.partition}:firehose:{_region(findings)}:*:deliverystream/{stream}"
    identity.may("firehose:PutRecordBatch", (found or {}).get("DeliveryStreamARN", unknown), why=_WRITES)


def _dynamodb(findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    table = given["tablename"]
    found = findings.attempt(
        "dynamodb",
        "DescribeTable",
        table,
        {"TableName": table},
        action="dynamodb:DescribeTable",
        read=lambda answer: dict(answer["Table"]),
        show=lambda table: (
            f"{table['TableStatus']}, key {', '.join(each['AttributeName'] for each in table['KeySchema'])}"
        ),
        if_denied="unknown",
    )
    unknown = (
        table
        if table.startswith("arn:")
        else f"arn:{identity.partition}:dynamodb:{_region(findings)}:*:table/{table}"
    )
    identity.may("dynamodb:BatchWriteItem", (found or {}).get("TableArn", unknown), why=_WRITES)


def _sqs(findings: Findings, identity: Identity, given: Mapping[str, str]) -> None:
    url = given["queueurl"]
    name = url.rpartition("/")[2]
    found = findings.attempt(
        "sqs",
        "GetQueueAttributes",
        name,
        {"QueueUrl": url, "AttributeNames": ["QueueArn"]},
        action="sqs:GetQueueAttributes",
        read=lambda answer: dict(answer["Attributes"]),
        if_denied="unknown",
    )
    unknown = f"arn:{identity.partition}:sqs:{_region(findings)}:*:{name}"
    identity.may("sqs:SendMessage", (found or {}).get("QueueArn", unknown), why=_WRITES)


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
    # Neither exists. Only callers who may ask are told so.
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


def _check_connection(findings: Findings, url: str) -> None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    what = f"connection to {host}:{port}"
    try:
        with socket.create_connection(
            (host, port), timeout=findings.connection.connect_timeout
        ) as connection:
            if parts.scheme == "https":
                with ssl.create_default_context().wrap_socket(connection, server_hostname=host):
                    pass
    except OSError as error:
        findings.add(what, "failed", f"{type(error).__name__}: {error}")
        return
    findings.add(what, "ok", "it accepts connections; nothing was sent")


_CHECKS: Final[Mapping[str, Callable[[Findings, Identity, Mapping[str, str]], None]]] = {
    "kinesis": _kinesis,
    "firehose": _firehose,
    "dynamodb": _dynamodb,
    "sqs": _sqs,
    "s3": _s3,
}


def _check_s3_dead_letters(identity: Identity, path: str) -> None:
    bucket, prefix = split_s3_path(path)
    identity.may("s3:PutObject", f"arn:{identity.partition}:s3:::{bucket}/{prefix}*", why=_WRITES)


def _check_directory(findings: Findings, path: str) -> None:
    what = f"deadLetterPath {path}"
    there = next(each for each in (Path(path).absolute(), *Path(path).absolute().parents) if each.exists())
    if not there.is_dir():
        findings.add(what, "failed", f"{there} is no directory")
    elif not os.access(there, os.W_OK | os.X_OK):
        findings.add(what, "failed", f"{there} cannot be written to by this user")
    else:
        findings.add(what, "ok", f"{there} can be written to, on this host; tasks write to theirs")
