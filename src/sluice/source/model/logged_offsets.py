"""Offsets as Spark passes them in and out: each is parsed or written once, however often Spark asks.

Spark passes the start of the next batch with every call, about 90 times a second while there is no data, as a
new copy each time. Parsing the positions of 10,000 splits takes 25 ms; comparing them with the last ones
takes 10 µs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice.source.model.offsets import Offsets

__all__ = ["LoggedOffsets"]

_KEPT: Final = 2
"""How many values of each kind are remembered: the start and the end of a batch."""


class LoggedOffsets:
    """Parses and writes offsets, and remembers the last two of each. Used by one thread.

    Parsed offsets are never taken from written ones: JSON has milliseconds, and memory has microseconds. So
        a batch is the same after a restart, which has only the JSON.

    Args:
        parse, write: read and write a source's offsets, if the source is not a log.
        are_constant: offsets never change once they are made. If a custom enumerator may change the offsets
            that it received or returned, nothing is remembered.
    """

    def __init__(
        self,
        parse: Callable[[Mapping[str, Any]], Any] = Offsets.from_json,
        write: Callable[[Any], dict[str, Any]] = Offsets.to_json,
        *,
        are_constant: bool = True,
    ) -> None:
        self._parse = parse
        self._write = write
        kept = _KEPT if are_constant else 0
        self._parsed: deque[tuple[Mapping[str, Any], Any]] = deque(maxlen=kept)
        self._written: deque[tuple[Any, dict[str, Any]]] = deque(maxlen=kept)

    def parse(self, value: Mapping[str, Any]) -> Any:
        """The offsets of a JSON value; the same object for an equal value.

        Args:
            value: must not be changed afterwards.

        Raises:
            SluiceError: these are not offsets of the source.
        """
        for known, offsets in self._parsed:
            if known == value:
                return offsets
        offsets = self._parse(value)
        self._parsed.appendleft((value, offsets))
        return offsets

    def write(self, offsets: Any) -> dict[str, Any]:
        """The JSON value of offsets, which must not be changed; the same one for the same object.

        Parsed offsets are written unchanged: an earlier release may have logged another version, and Spark
        4.0 and 4.1 mistake a different text for new data.
        """
        for value, known in self._parsed:
            if known is offsets:
                return dict(value)
        for known, value in self._written:
            if known is offsets:
                return value
        value = self._write(offsets)
        self._written.appendleft((offsets, value))
        return value
