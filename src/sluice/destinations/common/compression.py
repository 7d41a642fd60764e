"""Option `compression` of destinations that write the data of a row as it is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import pyarrow as pa

from sluice.options import Option, choice

__all__ = ["COMPRESSION", "compressed", "restored"]

COMPRESSION: Final = Option(
    "compression",
    choice("none", "gzip", "zstd"),
    "none",
    "Compression of each row's data: `none`, `gzip` or `zstd`. Limits count compressed bytes.",
)
# Equal data is compressed to equal bytes, so that a queue drops duplicates by content.
_COMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "gzip": partial(gzip.compress, compresslevel=6, mtime=0),
    "zstd": partial(pa.compress, codec="zstd", asbytes=True),
}


def compressed(values: list[bytes], compression: str) -> list[bytes]:
    """The data of some rows, each compressed by itself."""
    return values if compression == "none" else list(map(_COMPRESS[compression], values))


def restored(data: bytes, compression: str) -> bytes:
    """What was compressed; other data, which an `elementConverter` has made, as it is."""
    try:
        match compression:
            case "gzip":
                return gzip.decompress(data)
            case "zstd":
                return bytes(pa.CompressedInputStream(pa.py_buffer(data), "zstd").read())
    except (OSError, EOFError, zlib.error):
        pass
    return data
