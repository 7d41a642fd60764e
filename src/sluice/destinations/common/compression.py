"""Option `compression` of destinations that write the data of a row as it is."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from sluice.options import Option, OptionValues, choice

__all__ = ["COMPRESSION", "NO_COMPRESSION", "Compression", "compression_of"]

COMPRESSION: Final = Option(
    "compression",
    choice("none", "gzip", "zstd"),
    "none",
    "Of the data of each row: `none`, `gzip` or `zstd`. Limits count what is left.",
)


@dataclass(frozen=True)
class Compression:
    """Compresses the data of rows, and restores it for dead letters.

    Equal data is compressed to equal bytes, so that a queue drops duplicates by content.
    """

    _compress: Callable[[bytes], bytes] | None = None
    _decompress: Callable[[bytes], bytes] | None = None

    def __bool__(self) -> bool:
        return self._compress is not None

    def compressed(self, values: list[bytes]) -> list[bytes]:
        return values if self._compress is None else list(map(self._compress, values))

    def restored(self, data: bytes) -> bytes:
        """What was compressed; other data, which an `elementConverter` has made, as it is."""
        if self._decompress is None:
            return data
        try:
            return self._decompress(data)
        except (OSError, EOFError, zlib.error):
            return data


NO_COMPRESSION: Final = Compression()
_COMPRESSIONS: Final[Mapping[str, Compression]] = {
    "none": NO_COMPRESSION,
    "gzip": Compression(partial(gzip.compress, compresslevel=6, mtime=0), gzip.decompress),
    "zstd": Compression(
        partial(pa.compress, codec="zstd", asbytes=True),
        lambda data: bytes(pa.CompressedInputStream(pa.py_buffer(data), "zstd").read()),
    ),
}


def compression_of(values: OptionValues) -> Compression:
    """The compression that the options of a destination ask for."""
    return _COMPRESSIONS[values.require(COMPRESSION)]
