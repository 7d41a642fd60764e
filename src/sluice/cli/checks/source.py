"""Checks what a source needs: its streams, the permissions to read them, its consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice.aws.names.arns import consumer_path
from sluice.cli.checks.findings import Findings
from sluice.cli.checks.identity import Identity
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.options.fan_out import FanOutConfig
from sluice.kinesis.options.streams import StreamRef

__all__ = ["check_source"]

_SOME_SHARD: Final = "shardId-000000000000"
_MOST_CONSUMERS: Final = 20  # 50 in on-demand advantage mode


def check_source(findings: Findings, identity: Identity, config: SourceConfig) -> None:
    """Makes each call of a query once, except those that register a consumer or take over a subscription."""
    for stream in config.streams:
        arn = _check_stream(findings, stream)
        _check_reading(findings, stream)
        if config.fan_out is not None:
            _check_consumer(findings, identity, stream, arn, config.fan_out)


def _check_stream(findings: Findings, stream: StreamRef) -> str | None:
    """Returns the stream's ARN, if it is known."""
    summary = findings.attempt(
        "kinesis",
        "DescribeStreamSummary",
        stream.name,
        stream.address,
        read=lambda answer: dict(answer["StreamDescriptionSummary"]),
        show=_shown,
    )
    if summary is None:
        return stream.arn
    if summary["StreamStatus"] not in ("ACTIVE", "UPDATING"):
        findings.add(f"stream {stream.name}", "failed", f"it is {summary['StreamStatus']}")
    return str(summary["StreamARN"])


def _shown(summary: Mapping[str, Any]) -> str:
    key = "" if summary.get("EncryptionType", "NONE") == "NONE" else ", encrypted"
    return (
        f"{summary['StreamStatus']}, {summary['OpenShardCount']} open shards, "
        f"{summary['RetentionPeriodHours']} h of retention{key}"
    )


def _check_reading(findings: Findings, stream: StreamRef) -> None:
    name = stream.name
    shards = findings.attempt(
        "kinesis",
        "ListShards",
        name,
        {**stream.address, "MaxResults": 1},
        read=lambda answer: [str(each["ShardId"]) for each in answer["Shards"]],
    )
    if findings.found[-1].is_absent:
        return
    if not findings.attempt_reading("kinesis", name, stream.address, shards or (), _SOME_SHARD):
        action = "kinesis:GetRecords"
        findings.add(f"{action} on {name}", "unknown", "not tried, as it needs an iterator", action)


def _check_consumer(
    findings: Findings, identity: Identity, stream: StreamRef, arn: str | None, fan_out: FanOutConfig
) -> None:
    if arn is None:
        findings.add(f"consumer of {stream.name}", "unknown", "not tried, as the stream's ARN is not known")
        return
    given = fan_out.arns.get(stream.name)
    name = given or fan_out.consumer_name or ""
    target = consumer_path(given) if given else f"{stream.name}/consumer/{name}"
    status = findings.attempt(
        "kinesis",
        "DescribeStreamConsumer",
        target,
        {"ConsumerARN": given} if given else {"StreamARN": arn, "ConsumerName": name},
        read=lambda answer: dict(answer["ConsumerDescription"]),
        show=lambda consumer: f"the consumer is {consumer['ConsumerStatus']}",
        fine={} if given else {"ResourceNotFoundException": "allowed; the query will register the consumer"},
    )
    consumers = findings.attempt(
        "kinesis",
        "ListStreamConsumers",
        stream.name,
        {"StreamARN": arn},
        read=lambda answer: len(answer["Consumers"]),
        show=lambda count: f"allowed; {count} consumers",
        if_denied="warning",  # errors name the consumers that there are
    )
    if not given:
        if status is None and (consumers or 0) >= _MOST_CONSUMERS:
            many = (
                f"the stream has {consumers} consumers, and most streams take no more than {_MOST_CONSUMERS}"
            )
            findings.add(f"consumer {target}", "warning", many)
        why = "it would register a consumer, which is billed"
        identity.may("kinesis:RegisterStreamConsumer", arn, why=why)
    found = given or (status or {}).get("ConsumerARN") or f"{arn}/consumer/{name}:*"
    if not given and fan_out.deregister:
        identity.may("kinesis:DeregisterStreamConsumer", found, why="it would end the consumer")
    why = "it would take over the subscription of a query that runs"
    identity.may("kinesis:SubscribeToShard", found, why=why)
