"""The messages between tasks and the server of their query."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "AcquireTokens",
    "FromServer",
    "Granted",
    "Join",
    "Leave",
    "Members",
    "Ping",
    "Pong",
    "Queued",
    "ToServer",
    "TokensUsed",
    "UsingFallbackShare",
    "decode_from_server",
    "decode_to_server",
    "encode",
]


class Join(msgspec.Struct, tag=True, frozen=True):
    """The first message of a task.

    Attributes:
        query: whose tokens it takes: the id of the query, or of the batch write.
        epoch: the micro-batch; empty in a batch write.
        task: which attempt of which task; no two have the same.
        starts_full: the bucket is full if this task is the first to take from it. Only a batch write knows
            that nothing was sent before.
    """

    query: str
    epoch: str
    task: str
    starts_full: bool


class AcquireTokens(msgspec.Struct, tag=True, frozen=True):
    """Asks for tokens for the next request.

    Attributes:
        tokens: how many.
        returned: tokens that were granted, have not been used in time, and are not going to be.
    """

    tokens: float
    returned: float = 0.0


class TokensUsed(msgspec.Struct, tag=True, frozen=True):
    """The task has used tokens: a request is on its way."""

    tokens: float


class Leave(msgspec.Struct, tag=True, frozen=True):
    """The task is done, and does not use what it still has."""

    returned: float


class UsingFallbackShare(msgspec.Struct, tag=True, frozen=True):
    """The server has not answered in time: the task goes on at this share of the rate, and disconnects."""

    share: float


class Ping(msgspec.Struct, tag=True, frozen=True):
    """A new writer of the query asks whether the server lives."""


class Granted(msgspec.Struct, tag=True, frozen=True):
    """The tokens asked for, and perhaps some more."""

    tokens: float


class Queued(msgspec.Struct, tag=True, frozen=True):
    """There are not enough tokens yet; the estimate of when there are, in seconds."""

    seconds: float


class Members(msgspec.Struct, tag=True, frozen=True):
    """How many tasks take from the bucket."""

    count: int


class Pong(msgspec.Struct, tag=True, frozen=True):
    """The server lives."""


ToServer = Join | AcquireTokens | TokensUsed | Leave | UsingFallbackShare | Ping
FromServer = Granted | Queued | Members | Pong

_encoder: Final = msgspec.msgpack.Encoder()
_to_server: Final = msgspec.msgpack.Decoder(ToServer)
_from_server: Final = msgspec.msgpack.Decoder(FromServer)


def encode(message: ToServer | FromServer) -> bytes:
    return _encoder.encode(message)


def decode_to_server(frame: bytes | memoryview) -> ToServer:
    message: ToServer = _to_server.decode(frame)
    return message


def decode_from_server(frame: bytes | memoryview) -> FromServer:
    message: FromServer = _from_server.decode(frame)
    return message
