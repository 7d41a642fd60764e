"""Decompresses values, by the name of a codec or by their first bytes.

Formats: RFC 1952 (gzip), RFC 1950 (zlib), RFC 8878 (zstd), RFC 7932 (brotli),
https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md,
https://github.com/google/snappy/blob/main/format_description.txt, and framing_format.txt in the same folder.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from sluice.functions.columns import BadValueError

__all__ = ["CODECS", "MAX_BYTES", "decompressed"]

MAX_BYTES: Final = 1024**3
"""Bytes that a value may decompress to. 10 MiB of gzip can hold 10 GiB, which would end the worker."""

_PIECE: Final = 64 * 1024
"""Bytes that are decompressed at a time where the size is not known."""

_SNAPPY_FRAMES: Final = b"\xff\x06\x00\x00sNaPpY"
# zlib has no magic, but only these first bytes with a window of 32 KiB and without a dictionary.
_ZLIB: Final = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_MAGIC: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    _SNAPPY_FRAMES: "snappy",
}
_FIRST: Final = frozenset(magic[0] for magic in (*_MAGIC, *_ZLIB))


def decompressed(data: bytes, codec: str = "auto") -> bytes:
    """The decompressed data; with `auto`, uncompressed data are returned unchanged.

    Raises:
        BadValueError: it is damaged or truncated, or larger than `MAX_BYTES`.
    """
    if codec != "auto":
        if not data:
            raise BadValueError(f"an empty value is not {codec}")
        return _DECODERS[codec](data, codec)
    if not data or data[0] not in _FIRST:
        return data
    for magic, found in _MAGIC.items():
        if data.startswith(magic):
            return _DECODERS[found](data, found)
    if data.startswith(_ZLIB):
        try:
            return _inflated(data, "zlib")
        except BadValueError:
            pass  # text may begin like this: "x^2"
    return data


def _inflated(data: bytes, codec: str) -> bytes:
    """zlib, or gzip of one or more members. Python's zlib is faster for short values than Arrow's streams."""
    decoder = zlib.decompressobj(31 if codec == "gzip" else 15)
    try:
        made = decoder.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise _damaged(codec, error) from None
    if len(made) > MAX_BYTES:
        raise _too_large(codec)
    if not decoder.eof:
        raise _damaged(codec, "it is truncated")
    rest = decoder.unused_data
    if codec == "gzip":
        rest = rest.lstrip(b"\0")  # the format allows padding
    elif rest:
        raise _damaged(codec, "more bytes follow")
    return made + _streamed(rest, codec, len(made)) if rest else made


def _streamed(data: bytes, codec: str, size: int = 0) -> bytes:
    """By Arrow. `size` counts bytes of the value that are decompressed already."""
    pieces = []
    try:
        stream = pa.CompressedInputStream(pa.py_buffer(data), codec)
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise _too_large(codec)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(codec, error) from None
    return b"".join(pieces)


def _unsnapped(data: bytes, _codec: str) -> bytes:
    """Snappy: raw, or framed. Checksums of frames are not compared."""
    if not data.startswith(_SNAPPY_FRAMES):
        return _raw_snappy(data)
    pieces, size = [], 0
    for kind, chunk in _chunks(data):
        if kind <= 1:
            piece = chunk[4:] if kind else _raw_snappy(chunk[4:])
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise _too_large("snappy")
        elif kind < 0x80:
            raise _damaged("snappy", f"chunks of type {kind} are reserved")
    return b"".join(pieces)


def _chunks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The type and content of each chunk of framed Snappy."""
    start = 0
    while start < len(data):
        kind, end = data[start], start + 4 + int.from_bytes(data[start + 1 : start + 4], "little")
        if end > len(data) or start + 4 > len(data):
            raise _damaged("snappy", "it is truncated")
        yield kind, data[start + 4 : end]
        start = end


def _raw_snappy(data: bytes) -> bytes:
    # The size in front: seven bits a byte, the lowest first, in at most five bytes.
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if size > MAX_BYTES:
        raise _too_large("snappy")
    try:
        return bytes(_snappy.decompress(data, size, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise _damaged("snappy", error) from None


def _damaged(codec: str, why: object) -> BadValueError:
    return BadValueError(f"a value is not {codec}, or is damaged: {why}")


def _too_large(codec: str) -> BadValueError:
    return BadValueError(f"a value of {codec} is larger than {MAX_BYTES} bytes when it is decompressed")


_snappy: Final = pa.Codec("snappy")
_DECODERS: Final[Mapping[str, Callable[[bytes, str], bytes]]] = {
    "gzip": _inflated,
    "zlib": _inflated,
    "zstd": _streamed,
    "lz4": _streamed,
    "snappy": _unsnapped,
    "brotli": _streamed,
}
CODECS: Final = ("auto", *_DECODERS)
