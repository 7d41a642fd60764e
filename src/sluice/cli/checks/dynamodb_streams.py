"""Checks what the source of DynamoDB Streams needs: tables, their streams, the permissions to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluice.cli.checks.findings import Findings
from sluice.cli.checks.identity import Identity
from sluice.dynamodb_streams.options import StreamsConfig
from sluice.dynamodb_streams.streams import TableRef
from sluice.errors import ServiceError

__all__ = ["check_dynamodb_streams"]

_SERVICE: Final = "dynamodbstreams"
_SOME_SHARD: Final = "shardId-00000000000000000000-00000000"
_WAYS_TO_READ: Final = ("dynamodb:DescribeStream", "dynamodb:GetShardIterator", "dynamodb:GetRecords")


def check_dynamodb_streams(findings: Findings, identity: Identity, config: StreamsConfig) -> None:
    """Makes each call that a query makes, once for each table; all of them only read."""
    for table in config.tables:
        arn = table.arn or _find_stream(findings, identity, table)
        if arn is not None:
            _check_reading(findings, identity, table, arn)
        if config.scans:
            target = {"TableName": (table.arn or table.name).partition("/stream/")[0]}
            findings.attempt("dynamodb", "DescribeTable", table.name, target, read=lambda _: "")
            findings.attempt("dynamodb", "Scan", table.name, {**target, "Limit": 1}, read=lambda _: "")


def _find_stream(findings: Findings, identity: Identity, table: TableRef) -> str | None:
    """The ARN of the newest stream of a table; None if there is none, or it cannot be found out."""
    arns = findings.attempt(
        _SERVICE,
        "ListStreams",
        table.name,
        {"TableName": table.name},
        read=lambda answer: [str(stream["StreamArn"]) for stream in answer["Streams"]],
        show=lambda arns: f"allowed; {len(arns)} streams",
    )
    if arns:
        return max(arns, key=lambda arn: arn.rpartition("/")[2])
    if arns is not None:
        findings.add(f"stream of {table.name}", "failed", _why_there_is_none(findings, table.name))
    elif not findings.is_unreachable:
        where = f"arn:{identity.partition}:dynamodb:{findings.connection.region or '*'}:*"
        some = f"{where}:table/{table.name}/stream/*"
        _ask(identity, some, _WAYS_TO_READ, why="the stream is not known")
    return None


def _why_there_is_none(findings: Findings, table: str) -> str:
    """Why a table has no stream. A query does not need ``DescribeTable``, so it may be denied."""
    try:
        status = findings.call(
            "dynamodb", "DescribeTable", table, {"TableName": table}, lambda answer: answer["Table"]
        )["TableStatus"]
    except ServiceError as error:
        if error.missing:
            return "the table does not exist in this account and region"
        return "the table has no stream, or does not exist in this account and region"
    return f"the table is {status}, and no stream is enabled for it (StreamSpecification, StreamEnabled)"


def _check_reading(findings: Findings, identity: Identity, table: TableRef, arn: str) -> None:
    name = table.name
    description = findings.attempt(
        _SERVICE,
        "DescribeStream",
        name,
        {"StreamArn": arn, "Limit": 1},
        read=lambda answer: dict(answer["StreamDescription"]),
        show=_shown,
    )
    if description is not None and description["StreamStatus"] not in ("ENABLED", "ENABLING"):
        findings.add(
            f"stream of {name}",
            "warning",
            f"it is {description['StreamStatus']}: a query reads the last 24 hours, and waits",
        )
    shards = [str(each["ShardId"]) for each in (description or {}).get("Shards") or ()]
    if not findings.attempt_reading(_SERVICE, name, {"StreamArn": arn}, shards, _SOME_SHARD):
        _ask(identity, arn, _WAYS_TO_READ[-1:], why="it needs an iterator")


def _ask(identity: Identity, resource: str, actions: Sequence[str], *, why: str) -> None:
    for action in actions:
        identity.may(action, resource, why=why)


def _shown(description: Mapping[str, Any]) -> str:
    return f"{description['StreamStatus']}, {description.get('StreamViewType', 'no view type')}"
