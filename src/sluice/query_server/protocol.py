"""The messages between tasks and the query server."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "AcquireTokens",
    "FromServer",
    "Granted",
    "Join",
    "Ping",
    "Pong",
    "Queued",
    "ToServer",
    "TokensUsed",
    "decode_from_server",
    "decode_to_server",
    "encode",
]


class Join(msgspec.Struct, tag=True, frozen=True):
    """The first message of a task. The server answers nothing.

    Attributes:
        bucket: the name of the bucket that the task takes from.
        rate: tokens a second.
        burst: the most tokens that may be used at once.
        starts_full: whether the bucket is full if this task is the first to take from it.
    """

    bucket: str
    rate: float
    burst: float
    starts_full: bool


class AcquireTokens(msgspec.Struct, tag=True, frozen=True):
    """Asks for the tokens of the next request, and gives back all that the task holds."""

    tokens: float


class TokensUsed(msgspec.Struct, tag=True, frozen=True):
    """The task has sent a request that takes these tokens."""

    tokens: float


class Ping(msgspec.Struct, tag=True, frozen=True):
    """Asks whether the server is alive."""


class Granted(msgspec.Struct, tag=True, frozen=True):
    """The tokens that the task asked for."""

    tokens: float


class Queued(msgspec.Struct, tag=True, frozen=True):
    """There are too few tokens. Estimates when there are enough, in seconds."""

    seconds: float


class Pong(msgspec.Struct, tag=True, frozen=True):
    """The server is alive."""


ToServer = Join | AcquireTokens | TokensUsed | Ping
FromServer = Granted | Queued | Pong

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
