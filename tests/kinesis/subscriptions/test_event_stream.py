"""The messages of an event stream, read from a source of bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer
from event_streams import event_message, framed, message
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.errors import DamagedAnswerError
from sluice.kinesis.subscriptions.event_stream import (
    MAX_HEADERS,
    MAX_PAYLOAD,
    FrameReader,
    TruncatedStreamError,
)


def reader_of(data: bytes) -> FrameReader:
    return FrameReader(io.BytesIO(data).read)


def trickle(data: bytes, step: int) -> Callable[[int], bytes]:
    """A `read` that never returns more than `step` bytes."""
    stream = io.BytesIO(data)
    return lambda size: stream.read(min(size, step))


TEXT = st.text(min_size=1, max_size=20)


@given(
    st.lists(
        st.tuples(st.dictionaries(TEXT, st.text(max_size=40), max_size=4), st.binary(max_size=300)),
        max_size=6,
    ),
    st.integers(1, 50),
)
def test_messages_are_read_as_the_sdk_reads_them(
    messages: list[tuple[dict[str, str], bytes]], step: int
) -> None:
    """Headers and payloads of any messages, with the bytes in any portions."""
    data = b"".join(message(headers, payload) for headers, payload in messages)
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    expected: list[Any] = [(each.headers, each.payload) for each in buffer]

    reader = FrameReader(trickle(data, step))
    found: list[Any] = []
    while (frame := reader.next()) is not None:
        found.append((dict(frame.headers), bytes(frame.payload)))

    assert found == expected == messages


def test_no_byte_behind_a_message_is_asked_for() -> None:
    """A reader that waited for more would hold an event back until the next one."""
    data = event_message(b'{"Records": []}')
    asked = 0
    stream = io.BytesIO(data)

    def read(size: int) -> bytes:
        nonlocal asked
        asked += size
        return stream.read(size)

    assert FrameReader(read).next() is not None
    assert asked == len(data)


@pytest.mark.parametrize("kept", [1, 11, 12, 13, 40, -1])
def test_an_end_inside_a_message_raises(kept: int) -> None:
    """In the prelude, behind it, in the headers, and before the last byte."""
    whole = event_message(b'{"Records": []}')
    reader = reader_of(whole + whole[:kept])

    assert reader.next() is not None
    with pytest.raises(TruncatedStreamError):
        reader.next()


@given(st.integers(0, 400))
def test_a_flipped_bit_is_noticed(position: int) -> None:
    """Wherever it is, the message is not handed out."""
    whole = bytearray(event_message(b"x" * 100))
    whole[position % len(whole)] ^= 0x10

    with pytest.raises(DamagedAnswerError):
        reader_of(bytes(whole)).next()


def prelude(total: int, headers: int) -> bytes:
    lengths = struct.pack("!II", total, headers)
    return lengths + struct.pack("!I", crc32(lengths))


@pytest.mark.parametrize(
    ("total", "headers"),
    [
        (MAX_HEADERS + 17, MAX_HEADERS + 1),
        (MAX_PAYLOAD + 17, 0),
        (15, 0),
        (16, 1),
        (0, 0),
    ],
)
def test_impossible_lengths_are_refused_before_anything_is_read(total: int, headers: int) -> None:
    """Longer than the SDK's own limits, or shorter than an empty message."""
    stream = io.BytesIO(prelude(total, headers) + b"\0" * 100)

    with pytest.raises(DamagedAnswerError, match="bytes"):
        FrameReader(stream.read).next()
    assert stream.tell() == 12


def test_a_payload_at_the_limit_is_read() -> None:
    """One byte more would be refused."""
    frame = reader_of(framed(b"", bytes(MAX_PAYLOAD))).next()

    assert frame is not None
    assert len(frame.payload) == MAX_PAYLOAD


@pytest.mark.parametrize(
    "block",
    [
        b"\x01a\x63",  # a type that there is none of
        b"\x01a\x07\x00\x02\xff\xfe",  # no UTF-8
        b"\x01a\x04\x00",  # an integer of one byte
        b"\x01a\x00\x01a\x00",  # twice the same name
    ],
)
def test_headers_that_cannot_be_read_are_damage(block: bytes) -> None:
    """The checksum says that they came as they were sent."""
    with pytest.raises(DamagedAnswerError, match="headers"):
        reader_of(framed(block, b"")).next()
