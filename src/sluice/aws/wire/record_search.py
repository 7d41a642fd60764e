"""Finds the records of a page all at once, by what they begin with.

Stepping from record to record takes half a microsecond each, which for records of 100 B is more than all
that is done with them afterwards. Here all places are searched that look like the beginning of a record, and
the lengths behind each are read. If every record ends where the next one begins, these are the records: the
chain is what stepping would have found. If not, since data may look like a record, nothing is found here.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import numpy as np

from sluice.aws.wire.cbor import BREAK
from sluice.aws.wire.record_bounds import MAJOR_TYPES, Layout

__all__ = ["search_bounds"]

_SHOWN: Final = 4
"""Bytes of a record's beginning that are searched for. What follows them is checked with the values."""
_WIDTHS: Final = {24: 1, 25: 2, 26: 4}
"""By the kind of a head, how many bytes behind it have the length. Kinds up to 23 are the length itself."""
_LARGEST_KIND: Final = max(_WIDTHS)

_Offsets = Any  # numpy's arrays of int64


def search_bounds(body: bytes, start: int, count: int | None, layout: Layout) -> array[int] | None:
    """See `sluice.aws.wire.record_bounds.Find`."""
    page: _Offsets = np.frombuffer(body, np.uint8)
    begins = _begins(page, start, body[start : start + _SHOWN])
    if len(begins) == 0 or begins[0] != start or count not in (None, len(begins)):
        return None
    columns, at = [begins], begins
    try:
        for gap, name in zip(layout.gaps, layout.values, strict=False):
            found = _value(page, at + gap.size, MAJOR_TYPES[name] or 0)
            if found is None:
                return None
            columns += found
            at = found[1]
    except IndexError:  # behind the last byte
        return None
    ends = at + layout.gaps[-1].size
    end = int(ends[-1])
    is_chain = bool((ends[:-1] == begins[1:]).all()) and end <= len(body)
    if not is_chain or (count is None and body[end : end + 1] != bytes([BREAK])):
        return None
    bounds = np.empty(5 * len(begins) + 1, np.intc)
    np.stack(columns, axis=1, out=bounds[:-1].reshape(-1, 5), casting="same_kind")
    bounds[-1] = end
    result = array("i")
    result.frombytes(bounds.tobytes())
    return result


def _begins(page: _Offsets, start: int, shown: bytes) -> _Offsets:
    """The offsets from `start` on at which the bytes `shown` are."""
    found = np.flatnonzero(page[start : len(page) - len(shown) + 1] == shown[0]) + start
    for place, byte in enumerate(shown[1:], 1):
        found = found[page[found + place] == byte]
    return found


def _value(page: _Offsets, heads: _Offsets, major: int) -> tuple[_Offsets, _Offsets] | None:
    """Where the strings with these heads start and end; None if one is not a string of this type."""
    kinds = page[heads] - np.uint8(major << 5)  # another type becomes a large number
    if kinds.max() > _LARGEST_KIND:
        return None
    starts, sizes = heads + 1, kinds.astype(np.int64)
    for kind, width in _WIDTHS.items():
        those = np.flatnonzero(kinds == kind)
        if not len(those):
            continue
        at, size = starts[those], 0
        for place in range(width):
            size = size << 8 | page[at + place].astype(np.int64)
        sizes[those] = size
        starts[those] += width
    return starts, starts + sizes
