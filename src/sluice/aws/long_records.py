"""Reads pages of long records: their data is cut out of the JSON first, and decoded by itself.

A JSON decoder looks at every character of a string before it undoes base64 in another pass, for a byte at
a time. A vectorised decoder of base64 is several times as fast where records are long; where they are
short the cutting costs more than it saves. What is left of the page, with a mark in place of all data, is
read by the typed decoder as any page is, so that only it says what a page is.
"""

from __future__ import annotations

import os
import re
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from pybase64 import b64decode, b64encode

from sluice.aws.records import WireRecord

__all__ = ["read_page"]

_DATA: Final = re.compile(rb'"Data"\s*:\s*"')
_LONG: Final = 3 * 2**10
"""Characters of base64 in a record from which on cutting is faster: with 2,700 it is not, with 5,500 it takes
0.6 of the time, with 13,700 a third."""

# Nobody can have put it into a record.
_MARKED: Final = os.urandom(15)
_MARK: Final = b64encode(_MARKED)


class _Page(Protocol):
    @property
    def records(self) -> Sequence[WireRecord] | None: ...


PageT = TypeVar("PageT", bound=_Page)


def read_page(read: Callable[[Any], PageT], body: bytes | memoryview) -> PageT:
    """What ``read(body)`` gives, or raises.

    Args:
        read: takes bytes as well as what `body` is.
    """
    first = _DATA.search(body)
    if first is None or b'"' in bytes(body[first.end() : first.end() + _LONG]):
        return read(body)
    cut = _cut(bytes(body), first[0], first.end())
    if cut is None:
        return read(body)
    rest, data = cut
    page = read(rest)
    records = page.records or ()
    # As many marks as records, one in each: so no other field of that name has been cut.
    if len(records) != len(data) or any(record.data != _MARKED for record in records):
        return read(body)
    for record, content in zip(records, data, strict=True):
        record.data = content
    return page


def _cut(body: bytes, key: bytes, start: int) -> tuple[bytes, list[bytes]] | None:
    """The page with marks, and the data of its records, in order; None where they are short or not base64.

    An unescaped quote is never inside a JSON string, so `key` is always a field.

    Args:
        key: the field's name and the start of its value, as this page writes it.
        start: where the first value starts.
    """
    view = memoryview(body)
    pieces: list[memoryview] = []
    data: list[bytes] = []
    done = 0
    while start >= len(key):
        end = body.find(b'"', start)
        if end < _LONG * (len(data) + 1):
            return None
        pieces.append(view[done:start])
        try:
            data.append(b64decode(view[start:end], validate=True))
        except NotBase64:
            return None
        done = end
        start = body.find(key, end) + len(key)
    pieces.append(view[done:])
    return _MARK.join(pieces), data
