"""Reads the messages of an event stream (``application/vnd.amazon.eventstream``).

The SDK's own reader copies its buffer several times for each message, and waits for whole chunks. This one
asks the transport for exactly the bytes of a message, and hands out the payload without copying it. The
layout of messages: https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

from botocore.eventstream import EventStreamHeaderParser, ParserError

from sluice.aws.errors import DamagedAnswerError

__all__ = ["Frame", "FrameReader", "TruncatedStreamError"]

_PRELUDE: Final = struct.Struct("!III")  # length of the message, length of its headers, checksum of the two
_CHECKSUM: Final = struct.Struct("!I")
_FRAMING: Final = _PRELUDE.size + _CHECKSUM.size

# The limits of the SDK's own reader (bytes). The service's largest events have a third of that.
MAX_HEADERS: Final = 128 * 1024
MAX_PAYLOAD: Final = 24 * 1024 * 1024

_SHOWN: Final = 300
"""How many bytes of an answer messages show if it is not an event stream."""

_CACHED_HEADERS: Final = 32
"""How many parsed blocks of headers are cached: all events of a stream have the same headers."""


class TruncatedStreamError(DamagedAnswerError):
    """The stream ended in the middle of a message."""


class Frame(NamedTuple):
    """One message. `payload` is a view of the bytes that were read."""

    headers: Mapping[str, Any]
    payload: memoryview


class FrameReader:
    """Reads one message after another.

    Args:
        read: blocks until it has the given number of bytes. It may return fewer, and returns none at the end
            of the stream.
        make_space: called with the length of a message before more than its beginning is read; may block.
    """

    def __init__(
        self, read: Callable[[int], bytes], make_space: Callable[[int], None] = lambda _size: None
    ) -> None:
        self._read = read
        self._make_space = make_space
        self._headers: dict[bytes, Mapping[str, Any]] = {}

    def next(self) -> Frame | None:
        """Blocks until the next message has arrived. Returns None if the stream ends between two messages.

        Raises:
            TruncatedStreamError: the stream ends inside a message.
            DamagedAnswerError: a checksum, a length or the headers are wrong. It is not known where the
                next message begins, so nothing more can be read.
        """
        prelude = self._take(_PRELUDE.size, may_end=True)
        if not prelude:
            return None
        total, headers_length, checksum = _PRELUDE.unpack(prelude)
        if crc32(prelude[:8]) != checksum:
            raise DamagedAnswerError(self._without_prelude(prelude))
        if headers_length > MAX_HEADERS:
            raise DamagedAnswerError(f"a message has {headers_length} bytes of headers")
        if not 0 <= total - headers_length - _FRAMING <= MAX_PAYLOAD:
            raise DamagedAnswerError(f"a message has {total} bytes, {headers_length} of them headers")
        self._make_space(total)
        rest = memoryview(self._take(total - _PRELUDE.size))
        body = rest[: -_CHECKSUM.size]
        if crc32(body, crc32(prelude)) != _CHECKSUM.unpack(rest[-_CHECKSUM.size :])[0]:
            raise DamagedAnswerError(f"the checksum of a message of {total} bytes is wrong")
        return Frame(self._parsed(bytes(body[:headers_length])), body[headers_length:])

    def _without_prelude(self, data: bytes) -> str:
        # Some gateways send errors with status 200. After the first message, the bytes may be data of
        # records.
        if self._headers or data[:1] not in (b"{", b"<"):
            return "the checksum of a message's prelude is wrong"
        text = (data + self._read(_SHOWN)).decode(errors="replace")
        return f"the answer is not an event stream: it begins with {text}"

    def _take(self, size: int, *, may_end: bool = False) -> bytes:
        data = self._read(size)
        if len(data) == size or (may_end and not data):
            return data
        # Transports return fewer bytes at the end, and some of them before.
        parts, missing = [data], size - len(data)
        while missing:
            if not (data and (data := self._read(missing))):
                raise TruncatedStreamError(f"the stream ends {missing} bytes before the end of a message")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _parsed(self, block: bytes) -> Mapping[str, Any]:
        headers = self._headers.get(block)
        if headers is None:
            try:
                headers = EventStreamHeaderParser().parse(block)
            except (ParserError, KeyError, ValueError, struct.error) as error:
                raise DamagedAnswerError(f"a message's headers cannot be read: {error!r}") from None
            if len(self._headers) >= _CACHED_HEADERS:
                self._headers.clear()
            self._headers[block] = headers
        return headers
