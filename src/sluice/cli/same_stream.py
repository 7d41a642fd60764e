"""Whether the streams that the service has are those that a checkpoint is of.

A region or an account may have another stream of the same name. A checkpoint tells when each stream was
created, until when the query has seen it, and its ARN if the query registered a consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.names.arns import StreamArn
from sluice.cli.report import UsageError
from sluice.cli.service import (
    LiveStream,
    OtherStreamError,
    describe_stream,
    in_region,
    kinesis_calls,
    parse_stream,
    streams_of,
)
from sluice.errors import OptionError, ServiceError, SluiceError
from sluice.instants import iso_instant
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.streams import StreamRef
from sluice.source.model.offsets import Closed, Offsets

__all__ = ["ADVICE", "STREAM_ARN_HELP", "NamedStreams", "SameStreams", "compare_streams", "connect"]

STREAM_ARN_HELP: Final = "the ARN of a stream of the checkpoint, as of another account; its region is used"
ADVICE: Final = (
    "give the ARN of the right stream with --stream, whose region is then used, or its region, endpoint and "
    "credentials (--option region=…, endpointUrl=…)"
)


class NamedStreams:
    """The streams that the command line names by ARN.

    Args:
        texts: of ``--stream``.

    Raises:
        UsageError: a text is not an ARN of a stream.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.arns: dict[str, str] = {}
        for text in texts:
            if self.add(text).arn is None:
                raise UsageError(f"--stream {text}: give the ARN; the name is in the checkpoint")

    def add(self, text: str) -> StreamRef:
        """Reads a name or an ARN, and keeps the ARN."""
        stream = parse_stream(text)
        if stream.arn is not None and self.arns.setdefault(stream.name, stream.arn) != stream.arn:
            raise UsageError(f"{stream.arn} and {self.arns[stream.name]} are two streams of one name")
        return stream

    def check(self, names: Collection[str]) -> None:
        """Raises UsageError if one of them is not among the streams of these names."""
        if unknown := sorted(self.arns.keys() - set(names)):
            raise UsageError(
                f"--stream {self.arns[unknown[0]]}: the streams are {', '.join(sorted(names)) or 'none'}"
            )


@dataclass(frozen=True)
class SameStreams:
    """The streams of a checkpoint, as the service has them.

    Attributes:
        log: calls them.
        live: by name.
        recreated: those that were deleted and created again since.
    """

    log: KinesisLog
    live: Mapping[str, LiveStream]
    recreated: frozenset[str]


def connect(
    connection: ConnectionConfig, streams: Iterable[StreamRef]
) -> tuple[KinesisLog, Mapping[str, LiveStream]]:
    """Asks the service for streams, in the region of their ARNs.

    Raises:
        OptionError: the options or other ARNs name another region.
        SluiceError: there is no such stream, or another one; the message says how to name the right one.
    """
    streams = list(streams)
    arns = [StreamArn.parse(each.arn) for each in streams if each.arn is not None]
    if len(regions := {arn.region: arn.text for arn in arns}) > 1:
        raise OptionError(f"{' and '.join(regions.values())} are in different regions")
    for arn in arns:
        connection = in_region(connection, arn)
    calls = kinesis_calls(connection)
    try:
        live = {stream.name: describe_stream(calls, stream) for stream in streams}
    except OtherStreamError as error:
        raise OtherStreamError(f"{error}; {ADVICE}") from None
    except ServiceError as error:
        if not error.missing:
            raise
        raise SluiceError(f"{error}; {ADVICE}") from None
    return KinesisLog(calls, {stream.name: stream.arn for stream in streams}), live


def compare_streams(
    connection: ConnectionConfig, offsets: Offsets, named: NamedStreams, *, instead: str
) -> SameStreams:
    """Compares region, account, ARN and time of creation of each stream with the checkpoint.

    Args:
        named: the ARNs that the user gives.
        instead: what asks no service.

    Raises:
        OtherStreamError: the service has another stream of the name; or perhaps another one, as only an ARN
            can tell it from one that was created again.
        OptionError, SluiceError: as `connect`.
    """
    streams = []
    for stream in streams_of(offsets):
        arn = named.arns.get(stream.name, stream.arn)
        if stream.arn not in (None, arn):
            raise OtherStreamError(
                f"--stream {arn}: the checkpoint is of {stream.arn}, whose consumer its query registered"
            )
        streams.append(StreamRef(stream.name, arn))
    log, live = connect(connection, streams)
    recreated = set()
    for stream in streams:
        if _is_same(offsets, stream.name, live[stream.name]):
            continue
        problem = _difference(offsets, stream.name, live[stream.name])
        if live[stream.name].created <= _last_seen(offsets, stream.name):
            raise OtherStreamError(
                f"{problem}, which the query has read later than that. They are two streams of one name: "
                f"{ADVICE}; {instead}"
            )
        if stream.arn is None:
            raise OtherStreamError(
                f"{problem}. Either the query's stream was deleted and created again: then say so with "
                f"--stream {live[stream.name].arn}. Or they are two streams of one name: {ADVICE}; {instead}"
            )
        recreated.add(stream.name)
    return SameStreams(log, live, frozenset(recreated))


def _is_same(offsets: Offsets, stream: str, live: LiveStream) -> bool:
    created = offsets.created.get(stream)
    if created is None:  # by an early release
        return not 0 < _last_seen(offsets, stream) < live.created
    return created // 1000 == live.created // 1000


def _last_seen(offsets: Offsets, stream: str) -> int:
    """The last instant (microseconds) at which the stream of a checkpoint existed for certain; 0: unknown."""
    known = [offsets.listed, offsets.created.get(stream)]
    for split, position in offsets.positions.items():
        if split.stream == stream and not isinstance(position, Closed):
            known += [getattr(position, "arrival", None), position.caught_up_at]
    return max((at for at in known if at is not None), default=0)


def _difference(offsets: Offsets, stream: str, live: LiveStream) -> str:
    created = offsets.created.get(stream)
    before = "" if created is None else f" of {iso_instant(created)}"
    return (
        f"{live.arn} was created {iso_instant(live.created)}, and the checkpoint is of a stream {stream}"
        f"{before}"
    )
