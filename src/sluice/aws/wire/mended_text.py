"""Text of a service that has no UTF-8: half a surrogate pair, which JSON can write and UTF-8 cannot.

A partition key may come from a language whose strings are UTF-16. Such halves, and bytes that are not UTF-8,
become U+FFFD, so that no text can stop a query.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any, Final

from sluice.aws.errors import DamagedAnswerError

__all__ = ["REPLACEMENT", "check_mended", "mended", "mended_json"]

REPLACEMENT: Final = "\ufffd"

_log = logging.getLogger(__name__)

_warned: Final[list[str]] = []

# An escape of JSON: a pair, which stays, or a half; or any other one, whose second character starts none.
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\."
)


def mended(data: bytes) -> str:
    """The text of some bytes, with U+FFFD for each half of a surrogate pair, and for bytes that are not
    UTF-8.
    """
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def mended_json(body: bytes) -> bytes:
    """JSON with U+FFFD for halves of pairs, as bytes or as escapes; the same bytes if there are none."""
    text = mended(body).encode()
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found[1] else found[0], text)


def check_mended(records: Iterable[Any]) -> None:
    """Logs the first record of this process whose partition key was mended.

    Raises:
        DamagedAnswerError: a sequence number was.
    """
    records = list(records)
    if any(REPLACEMENT in each.sequence_number for each in records):
        raise DamagedAnswerError("a sequence number is not UTF-8")
    first = next((each for each in records if REPLACEMENT in getattr(each, "partition_key", "")), None)
    if first is None or _warned:
        return
    _warned.append(first.sequence_number)
    _log.warning(
        "the partition key of record %s is not valid Unicode: its row has "
        "U+FFFD there; later records of the kind are not logged",
        first.sequence_number,
    )
