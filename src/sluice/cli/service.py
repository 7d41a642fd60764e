"""Calls of Kinesis by commands, with fewer retries than the source makes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from sluice.aws.calls import Calls
from sluice.aws.connection import ConnectionConfig
from sluice.kinesis.client import KinesisLog
from sluice.kinesis.options import BACKOFF_DEFAULTS
from sluice.retry import Backoff, Retrier
from sluice.source.offsets import Offsets

__all__ = ["foreign_shard", "kinesis_calls", "kinesis_log"]

_SHARD: Final = re.compile(r"shardId-\d+")

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


def kinesis_log(connection: ConnectionConfig, streams: Iterable[str]) -> KinesisLog:
    """The streams of an account and region, by name.

    Raises:
        OptionError: there is no region, or no credentials.
        ServiceError: Kinesis does not answer.
    """
    return KinesisLog(kinesis_calls(connection), dict.fromkeys(streams))


def foreign_shard(offsets: Offsets) -> str | None:
    """A shard of offsets in which none is of Kinesis, as those of DynamoDB Streams; None for any others.

    Of such offsets Kinesis must not be asked: a stream may have the name of a table.
    """
    splits = sorted(offsets.positions)
    if not splits or any(_SHARD.fullmatch(split.shard) for split in splits):
        return None
    return str(splits[0])
