"""Offsets as Spark passes them in and out: each is parsed or written once, however often Spark asks.

Spark passes the start of the next batch with every call, some 90 times a second while there is no data, as a
new copy each time. To parse the positions of 10,000 splits takes 100 ms; to see that they are the same as
before takes 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from sluice.source.offsets import Offsets

__all__ = ["LoggedOffsets"]

_KEPT: Final = 2
"""The start and the end of a batch."""


class LoggedOffsets:
    """Parses and writes offsets, and remembers the last two of each. Used by one thread.

    What is parsed does not come from what was written: JSON has milliseconds, and memory has microseconds. So
    a batch is the same after a restart, when only JSON is there.
    """

    def __init__(self) -> None:
        self._parsed: deque[tuple[Mapping[str, Any], Offsets]] = deque(maxlen=_KEPT)
        self._written: deque[tuple[Offsets, dict[str, Any]]] = deque(maxlen=_KEPT)

    def parse(self, value: Mapping[str, Any]) -> Offsets:
        """The offsets of a JSON value; the same object for an equal value.

        Args:
            value: nobody may change it afterwards.

        Raises:
            SluiceError: as `Offsets.from_json`.
        """
        for known, offsets in self._parsed:
            if known == value:
                return offsets
        offsets = Offsets.from_json(value)
        self._parsed.appendleft((value, offsets))
        return offsets

    def write(self, offsets: Offsets) -> dict[str, Any]:
        """The JSON value of offsets, which nobody may change; the same one for the same object."""
        for known, value in self._written:
            if known is offsets:
                return value
        value = offsets.to_json()
        self._written.appendleft((offsets, value))
        return value
