"""Arrow arrays of Python values, made without pyarrow's own conversion.

To convert any Python value, `pyarrow.array` and `pyarrow.scalar` import pandas first: 0.2 s of CPU in every
Python worker, before its first row, for nothing that is used here. For a page these functions take as long as
pyarrow's.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["binaries", "floats", "integers", "repeated", "scalar", "strings"]

_TYPE_CODES: Final = {32: "i", 64: "q"}
_MOST_BYTES: Final = 2**31 - 1
"""Bytes that an array of strings may hold: offsets have 32 bits."""


def integers(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """An array of integers, or of values that are stored as integers, such as times.

    Raises:
        OverflowError: a value does not fit.
    """
    return _numbers(array(_TYPE_CODES[kind.bit_width], values), kind)


def floats(values: Iterable[float]) -> pa.Array:
    """An array of float64."""
    return _numbers(array("d", values), pa.float64())


def binaries(values: Sequence[bytes]) -> pa.Array:
    """An array of binary. Joining the values lets other threads run where they are long.

    Raises:
        pa.ArrowInvalid: they hold 2 GiB or more.
    """
    return _joined(pa.binary(), list(map(len, values)), b"".join(values))


def strings(values: Sequence[str]) -> pa.Array:
    """An array of strings.

    Raises:
        UnicodeEncodeError: a value has no UTF-8.
        pa.ArrowInvalid: they hold 2 GiB or more.
    """
    text = "".join(values)
    data = text.encode()
    is_ascii = len(data) == len(text)
    sizes = list(map(len, values)) if is_ascii else [len(value.encode()) for value in values]
    return _joined(pa.string(), sizes, data)


def scalar(value: float, kind: pa.DataType) -> pa.Scalar:
    """A number for Arrow to compute with."""
    return (floats([value]) if pa.types.is_floating(kind) else integers([int(value)], kind))[0]


def repeated(value: str, count: int) -> pa.Array:
    """An array of one string, `count` times; four times as fast as `pyarrow.repeat`.

    Raises:
        OverflowError: they hold 2 GiB or more.
    """
    data = value.encode()
    if len(data) * count > _MOST_BYTES:
        raise OverflowError(f"{count} strings of {len(data)} bytes do not fit into an array")
    starts = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(starts), pa.py_buffer(data * count)])


def _numbers(values: array[int] | array[float], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _joined(kind: pa.DataType, sizes: Sequence[int], data: bytes) -> pa.Array:
    packed = struct.pack(f"{len(sizes) + 1}i", 0, *sizes)  # twice as fast as `array`
    starts = pa.Array.from_buffers(pa.int32(), len(sizes) + 1, [None, pa.py_buffer(packed)])
    offsets = pc.cumulative_sum_checked(starts).buffers()[1]
    return pa.Array.from_buffers(kind, len(sizes), [None, offsets, pa.py_buffer(data)])
