"""The lease table of the Kinesis Client Library, versions 1 to 3.

An item is a shard (https://docs.aws.amazon.com/streams/latest/dev/kcl-dynamoDB.html). What is read of it
has not changed since KCL 1: ``leaseKey``, ``checkpoint`` and ``checkpointSubSequenceNumber``, as the sources
of ``KinesisClientLeaseSerializer`` (KCL 1) and ``DynamoDBLeaseSerializer`` (KCL 2, 3) have them. With several
streams (KCL 2.3 on, ``DynamoDBMultiStreamLeaseSerializer``) the key is
``<account>:<stream>:<creation epoch>:<shard>``, and ``shardId`` and ``streamName`` have its parts. In a
single table of KCL 3.5 other items have another ``entityType`` than ``LEASE``.

A checkpoint is the last record that was processed, with the user record inside an aggregated one, or a word
of ``SentinelCheckpoint``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import StreamArn
from sluice.aws.wire.items import page_of
from sluice.cli.imports.places import SHARD_END, TRIM_HORIZON, Imported, ImportedFormatError, Place, after
from sluice.cli.report import UsageError
from sluice.kinesis.options.streams import StreamRef
from sluice.retry import Backoff, Retrier
from sluice.source.model.splits import SplitId

__all__ = ["imported_leases", "scan", "scanned_file"]

_SCAN: Final = {"Scan": Backoff(max_retries=5, base=0.5, max=5.0, exponent=2.0)}
_UNREAD: Final = ("LATEST", "AT_TIMESTAMP")
"""Checkpoints of shards of which no record was processed yet."""

Item = Mapping[str, Mapping[str, Any]]
"""An item as DynamoDB's API has it: attribute to type to value."""


def scan(table: str, connection: ConnectionConfig) -> list[Item]:
    """All items of a lease table.

    Raises:
        ServiceError: DynamoDB refuses. The permission is ``dynamodb:Scan``.
    """
    calls = Calls(connection, "dynamodb", _SCAN, Retrier())
    items: list[Item] = []
    request: dict[str, Any] = {"TableName": table, "ConsistentRead": True}
    while True:
        page = calls.call("Scan", table, request, page_of)
        items += map(msgspec.json.decode, page.items)
        if page.last_key is None:
            return items
        request = {**request, "ExclusiveStartKey": page.last_key}


def scanned_file(file: Path) -> list[Item]:
    """The items of a file that ``aws dynamodb scan`` has printed.

    Raises:
        UsageError: it is not such a file.
    """
    try:
        items = json.loads(file.read_text())["Items"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file}: expected what 'aws dynamodb scan' prints ({error!r})") from None
    if not isinstance(items, list):
        raise UsageError(f"{file}: expected what 'aws dynamodb scan' prints")
    return items


def imported_leases(items: Iterable[Item], stream: StreamRef | None) -> Imported:
    """The places of all leases.

    Args:
        items: of the lease table.
        stream: the stream of the leases; if they name several, the one to import, of the account of its ARN.
            None: all that are named.

    Raises:
        ImportedFormatError: there is no lease, or one of them is not understood.
        UsageError: neither the leases nor the user say which stream they are of.
    """
    places: dict[SplitId, Place] = {}
    unread: dict[SplitId, str] = {}
    identifiers: dict[str, str] = {}
    for item in items:
        if _text(item, "entityType") not in (None, "LEASE") or _text(item, "checkpoint") is None:
            continue
        split = _split(item, stream)
        if split is None:
            continue
        identifier = _text(item, "streamName") or ""
        if identifiers.setdefault(split.stream, identifier) != identifier:
            raise ImportedFormatError(
                f"the table has leases of two streams named {split.stream}, "
                f"{identifiers[split.stream]} and {identifier}: if their accounts differ, choose one by "
                "--stream ARN; otherwise remove the leases of one from the output of "
                "'aws dynamodb scan', and pass it as @FILE"
            )
        checkpoint = _text(item, "checkpoint") or ""
        if checkpoint in _UNREAD:
            unread[split] = checkpoint
        else:
            places[split] = _place(split, checkpoint, item)
    if not places and not unread:
        wanted = "" if stream is None else f" of stream {stream.arn or stream.name}"
        raise ImportedFormatError(f"the table has no lease{wanted}")
    return Imported(places, unread, identities={name: it for name, it in identifiers.items() if it})


def _place(split: SplitId, checkpoint: str, item: Item) -> Place:
    if checkpoint == "SHARD_END":
        return SHARD_END
    if checkpoint == "TRIM_HORIZON":
        return TRIM_HORIZON
    if not checkpoint.isascii() or not checkpoint.isdigit():
        raise ImportedFormatError(
            f"{split}: checkpoint {checkpoint!r} is neither a sequence number nor a word of the KCL"
        )
    # The KCL takes a missing number for 0. That also fits a record that is not aggregated: its only row has
    # number 0.
    return after(checkpoint, int(item.get("checkpointSubSequenceNumber", {}).get("N", 0)))


def _split(item: Item, stream: StreamRef | None) -> SplitId | None:
    """The shard of a lease; None for one of another stream."""
    account = None if stream is None or stream.arn is None else StreamArn.parse(stream.arn).account
    key = _text(item, "leaseKey") or ""
    shard = _text(item, "shardId")
    if shard is None:
        if stream is None:
            raise UsageError("the leases do not name their stream: give --stream")
        return SplitId(stream.name, key)
    # <account>:<stream>:<creation epoch>, which is in the key as well.
    parts = (_text(item, "streamName") or key).split(":")
    if len(parts) < 3:
        raise ImportedFormatError(f"lease {key}: streamName is not <account>:<stream>:<creation epoch>")
    is_wanted = stream is None or (stream.name == parts[1] and account in (None, parts[0]))
    return SplitId(parts[1], shard) if is_wanted else None


def _text(item: Item, attribute: str) -> str | None:
    value = item.get(attribute, {}).get("S")
    return None if value is None else str(value)
