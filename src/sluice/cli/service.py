"""Streams of Kinesis as commands name them, and calls with fewer retries than the source makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.clients import configured_endpoint, endpoint_for
from sluice.aws.calling.connection import ENDPOINT_URL, REGION, ConnectionConfig
from sluice.aws.names import shards
from sluice.aws.names.arns import NAME_FORM, STREAM_ARN_FORM, ConsumerArn, StreamArn, parse_name
from sluice.aws.regions import region_of
from sluice.cli.report import UsageError
from sluice.dynamodb_streams.source import FORMAT as _TABLES
from sluice.errors import OptionError, SluiceError
from sluice.instants import micros_from_datetime
from sluice.kinesis.options.config import BACKOFF_DEFAULTS
from sluice.kinesis.options.config import FORMAT as _KINESIS
from sluice.kinesis.options.streams import StreamRef
from sluice.retry import Backoff, Retrier
from sluice.source.model.offsets import Offsets

__all__ = [
    "STREAM_FORM",
    "LiveStream",
    "OtherStreamError",
    "describe_stream",
    "foreign_shard",
    "in_region",
    "kinesis_calls",
    "parse_stream",
    "source_kind",
    "streams_of",
]

STREAM_FORM: Final = f"a stream's name, or its ARN, whose region is then used: {STREAM_ARN_FORM}"

_SHARD: Final = re.compile(r"shardId-\d+")
_TABLE_SHARD: Final = re.compile(r"shardId-\d{20}-[0-9a-f]+")

# Few, as people wait for the answer and can call the command again.
_RETRIES: Final = 3
_MAX_WAIT: Final = 2.0
"""Seconds before a retry, at most."""
_BACKOFFS: Final = {
    operation: replace(backoff, max_retries=min(_RETRIES, backoff.max_retries), max=_MAX_WAIT)
    for operation, backoff in BACKOFF_DEFAULTS.items()
}


def kinesis_calls(connection: ConnectionConfig, *, retrier: Retrier | None = None) -> Calls:
    """Calls of Kinesis, which give up after some seconds."""
    listing = dict.fromkeys(("DescribeStreamSummary", "ListStreams"), _BACKOFFS["ListShards"])
    backoffs: dict[str, Backoff] = {**_BACKOFFS, **listing}
    return Calls(connection, "kinesis", backoffs, retrier or Retrier())


def parse_stream(text: str) -> StreamRef:
    """A stream that the command line names by its name or its ARN."""
    try:
        if not text.strip().startswith("arn:"):
            return StreamRef(parse_name(text))
        arn = StreamArn.parse(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a stream: expected {NAME_FORM}, or {STREAM_ARN_FORM}") from None
    return StreamRef(arn.stream, arn.text)


def in_region(connection: ConnectionConfig, arn: StreamArn | ConsumerArn | None) -> ConnectionConfig:
    """The connection to the region that an ARN names; without an ARN the connection as it is.

    Raises:
        OptionError: the options name another region.
    """
    if arn is None:
        return connection
    endpoint = endpoint_for(connection, "kinesis") or configured_endpoint(connection, "kinesis")
    said = {
        f"option '{REGION.key}' is {connection.region!r}": connection.region,
        f"option '{ENDPOINT_URL.key}' is {endpoint!r}": region_of(endpoint),
    }
    for what, region in said.items():
        if region not in (None, arn.region):
            raise OptionError(
                f"{what}, and {arn.text} is in {arn.region}: leave the option out, or give that region's"
            )
    return replace(connection, region=arn.region)


def streams_of(offsets: Offsets) -> list[StreamRef]:
    """The streams of offsets: by ARN if the query registered a consumer with them, else by name."""
    found = []
    for name in sorted(offsets.streams):
        try:
            arn = ConsumerArn.parse(offsets.consumers.get(name, "")).stream_arn
        except ValueError:
            arn = None
        found.append(StreamRef(name, arn))
    return found


class OtherStreamError(SluiceError):
    """The service has another stream of the same name."""


@dataclass(frozen=True)
class LiveStream:
    """A stream as the service describes it.

    Attributes:
        created: microseconds since the epoch.
    """

    arn: str
    created: int
    open_shards: int

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> LiveStream:
        summary = answer["StreamDescriptionSummary"]
        created = micros_from_datetime(summary["StreamCreationTimestamp"])
        return cls(summary["StreamARN"], created, summary["OpenShardCount"])


def describe_stream(calls: Calls, stream: StreamRef) -> LiveStream:
    """Asks the service for a stream.

    Raises:
        OtherStreamError: another stream than the ARN's has answered.
        ServiceError: there is no such stream, or the service does not answer.
    """
    live = shards.describe_stream(calls, stream.name, stream.address, LiveStream.parse)
    if stream.arn not in (None, live.arn):  # of an endpoint that goes by the name alone
        raise OtherStreamError(f"asked for {stream.arn}, the endpoint answers for {live.arn}")
    return live


def foreign_shard(offsets: Offsets) -> str | None:
    """A shard of offsets without shards of Kinesis, such as of DynamoDB Streams; None for other offsets.

    Of such offsets Kinesis must not be asked: a stream may have the name of a table.
    """
    splits = sorted(offsets.positions)
    if not splits or any(_SHARD.fullmatch(split.shard) for split in splits):
        return None
    return str(splits[0])


def source_kind(offsets: Offsets) -> str:
    """The format of the source that has logged offsets, or ``custom``, as far as its shards tell."""
    shards = [split.shard for split in offsets.positions]
    if foreign_shard(offsets) is None:
        return _KINESIS if shards or offsets.consumers else "unknown"
    return _TABLES if all(map(_TABLE_SHARD.fullmatch, shards)) else "custom"
