"""``sluice consumers``: the registered fan-out consumers of streams, and the removal of those left over."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.aws.arns import CONSUMER_ARN_FORM, ConsumerArn, consumer_path
from sluice.aws.calls import Calls
from sluice.aws.connection import ConnectionConfig
from sluice.cli.checkpoint import Checkpoint
from sluice.cli.options import add_connection, connection_of
from sluice.cli.report import Report, UsageError, table
from sluice.cli.service import foreign_shard, kinesis_calls
from sluice.cli.storage import open_storage
from sluice.errors import ServiceError
from sluice.instants import iso_instant
from sluice.kinesis.consumer_calls import ConsumerDescription, deregister_consumer, list_consumers

HELP = "list the fan-out consumers of streams with what they cost, and remove ones left over"

PRICE: Final = 0.015
"""Dollars for a consumer, a shard and an hour in us-east-1, of streams with provisioned capacity.

https://aws.amazon.com/kinesis/data-streams/pricing/; streams on demand have no such price."""


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    text = "the consumers of streams, what each costs an hour, and which checkpoint it belongs to"
    listing = subparsers.add_parser("list", help=text, description=text)
    listing.add_argument(
        "--stream", action="append", default=[], metavar="NAME", help="of this stream; may be given again"
    )
    listing.add_argument(
        "--all-streams", action="store_true", help="of all streams of the account and region"
    )
    listing.add_argument(
        "--price",
        type=float,
        default=PRICE,
        help=f"dollars for a consumer, a shard and an hour in your region; {PRICE} as in us-east-1",
    )
    _add_checkpoints(listing, "whose consumers to name; its streams are listed, too")
    listing.set_defaults(run=_list)
    text = "deregister consumers; shows which unless --execute is given"
    removal = subparsers.add_parser("remove", help=text, description=text)
    removal.add_argument("arn", nargs="+", help=CONSUMER_ARN_FORM)
    _add_checkpoints(removal, "whose consumer is not removed")
    removal.add_argument("--execute", action="store_true", help="do it")
    removal.add_argument("--force", action="store_true", help="also a consumer that a checkpoint names")
    removal.set_defaults(run=_remove)


def _add_checkpoints(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="PATH",
        help=f"a query's checkpointLocation, {what}; may be given again",
    )
    add_connection(parser)


# --- list ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stream:
    """What the cost of a stream's consumers depends on."""

    name: str
    arn: str
    open_shards: int
    is_on_demand: bool

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> _Stream:
        summary = answer["StreamDescriptionSummary"]
        mode = summary.get("StreamModeDetails", {}).get("StreamMode")
        return cls(
            summary["StreamName"], summary["StreamARN"], summary["OpenShardCount"], mode == "ON_DEMAND"
        )

    def cost(self, consumer: ConsumerDescription, price: float) -> float:
        """Dollars an hour, besides the price of what is read."""
        return 0.0 if self.is_on_demand or consumer.status == "DELETING" else self.open_shards * price


def _list(arguments: argparse.Namespace) -> Report:
    if not 0 <= arguments.price < math.inf:  # NaN is none, and no JSON
        raise UsageError("--price is a number of dollars from 0 on")
    connection = connection_of(arguments)
    owners, streams = _owners(arguments.checkpoint, connection)
    calls = kinesis_calls(connection)
    names = {*arguments.stream, *streams}
    if arguments.all_streams:
        names |= set(_all_streams(connection))
    elif not names:
        raise UsageError("whose consumers? Give --stream, --checkpoint or --all-streams")
    found: list[dict[str, Any]] = []
    for name in sorted(names):
        stream = calls.call("DescribeStreamSummary", name, {"StreamName": name}, _Stream.parse)
        found += [
            {
                "stream": name,
                "name": each.name,
                "arn": each.arn,
                "status": each.status,
                "registered": None if each.created is None else iso_instant(each.created),
                "openShards": stream.open_shards,
                "dollarsAnHour": round(stream.cost(each, arguments.price), 6),
                "checkpoint": owners.get(each.arn),
            }
            for each in sorted(list_consumers(calls, stream.arn), key=lambda each: each.name)
        ]
    value = {
        "streams": sorted(names),
        "consumers": found,
        "dollarsAnHour": round(sum(each["dollarsAnHour"] for each in found), 6),
        # Registered by a query, and not there any more: the query registers another one when it starts.
        "missing": {
            arn: where for arn, where in owners.items() if arn not in {each["arn"] for each in found}
        },
    }
    return Report(value, _text(value, has_checkpoints=bool(arguments.checkpoint)))


def _text(value: Mapping[str, Any], *, has_checkpoints: bool) -> str:
    if not value["consumers"]:
        lines = [f"no consumers: {', '.join(value['streams'])}"]
    else:
        unknown = "no checkpoint given" if has_checkpoints else "give --checkpoint to know"
        rows = [
            (
                f"{each['stream']}/{each['name']}",
                each["status"],
                each["registered"],
                f"${each['dollarsAnHour']:.3f}",
                each["checkpoint"] or unknown,
            )
            for each in value["consumers"]
        ]
        lines = [
            table(("CONSUMER", "STATUS", "REGISTERED", "AN HOUR", "BELONGS TO"), rows),
            "",
            f"${value['dollarsAnHour']:.3f} an hour in all, and the price of what they read",
            *(f"{each['stream']}/{each['name']}  {each['arn']}" for each in value["consumers"]),
        ]
    lines += [f"gone: {arn}, of {where}" for arn, where in value["missing"].items()]
    return "\n".join(lines)


def _owners(paths: Iterable[str], connection: ConnectionConfig) -> tuple[dict[str, str], set[str]]:
    """By ARN, the checkpoint of the query that registered it; and the streams of all checkpoints."""
    owners: dict[str, str] = {}
    streams: set[str] = set()
    for path in paths:
        checkpoint = Checkpoint(open_storage(path, connection))
        if checkpoint.last is None:
            continue
        for source in checkpoint.read(checkpoint.last).sources:
            offsets = source.offsets
            if offsets is not None and foreign_shard(offsets) is None:
                streams |= offsets.streams
                owners |= dict.fromkeys(offsets.consumers.values(), path)
    return owners, streams


def _all_streams(connection: ConnectionConfig) -> list[str]:
    calls = kinesis_calls(connection)
    names: list[str] = []
    request: dict[str, Any] = {}
    while True:
        page, has_more = calls.call(
            "ListStreams", "", request, lambda answer: (answer["StreamNames"], answer["HasMoreStreams"])
        )
        names += page
        if not has_more:
            return names
        request = {"ExclusiveStartStreamName": names[-1]}


# --- remove --------------------------------------------------------------------------------------------


def _remove(arguments: argparse.Namespace) -> Report:
    connection = connection_of(arguments)
    arns = [_parsed(text) for text in arguments.arn]
    owners, _ = _owners(arguments.checkpoint, connection)
    calls = kinesis_calls(connection)
    outcomes = [_outcome(arguments, calls, arn, owners.get(arn.text)) for arn in arns]
    value = {
        "executed": arguments.execute,
        "consumers": [
            {"arn": arn.text, "outcome": outcome} for arn, outcome in zip(arns, outcomes, strict=True)
        ],
    }
    lines = [f"{outcome}: {arn.text}" for arn, outcome in zip(arns, outcomes, strict=True)]
    if not arguments.execute:
        advice = (
            "Nothing was changed. Give --execute to do it; a query that reads with it fails over to polling, "
            "or registers another one when it starts."
        )
        lines += ["", advice]
    return Report(value, "\n".join(lines), has_problem=any(each.startswith("refused") for each in outcomes))


def _parsed(text: str) -> ConsumerArn:
    try:
        return ConsumerArn.parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is not the ARN of a consumer: {CONSUMER_ARN_FORM}") from None


def _outcome(arguments: argparse.Namespace, calls: Calls, arn: ConsumerArn, owner: str | None) -> str:
    if owner is not None and not arguments.force:
        return f"refused, as it belongs to {owner} (--force removes it)"
    try:
        status = calls.call(
            "DescribeStreamConsumer",
            consumer_path(arn.text),
            {"ConsumerARN": arn.text},
            lambda answer: str(answer["ConsumerDescription"]["ConsumerStatus"]),
        )
    except ServiceError as error:
        if not error.missing:
            raise
        return "was gone already"
    if status == "DELETING":
        return "is being removed already"
    if not arguments.execute:
        return "would be removed"
    deregister_consumer(calls, arn.text)
    return "removed"
