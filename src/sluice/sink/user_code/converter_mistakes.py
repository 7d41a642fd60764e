"""Mistakes in what `convert` of an element converter returns, found before the writer acts on it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

__all__ = ["checked_entries"]

EntryT = TypeVar("EntryT")

_READY: Final[tuple[type, ...]] = (type(iter(())), type(iter([])))
"""Iterators over entries that are made already."""


def checked_entries(returned: Iterable[EntryT], converter: object, name: str) -> Iterator[EntryT]:
    """The entries that `convert` returned. Raises where StopIteration is no end, but a mistake.

    `map` and `filter` pass on what makes an entry raises, and all rows from there on would be lost without an
    error. A generator makes a RuntimeError of it. What swallows it inside, as `list` and `chain` do, cannot
    be told.

    Args:
        returned: by `convert`.
        converter: whose it is.
        name: the destination's, for messages.

    Raises:
        TypeError: at once: these are no entries; from the iterator: StopIteration in place of an entry.
    """
    # Of a text, each character would be an entry.
    if not isinstance(returned, str | bytes | bytearray | Mapping):
        with contextlib.suppress(TypeError):
            entries = iter(returned)
            is_sure_to_end = inspect.isgenerator(entries) or type(entries) in _READY
            return entries if is_sure_to_end else _until_the_end(entries, converter, name)
    kind = type(returned).__name__
    raise TypeError(f"{_named(converter, name)} returned {kind} from convert, and no entries")


def _until_the_end(entries: Iterator[EntryT], converter: object, name: str) -> Iterator[EntryT]:
    make = entries.__next__
    try:
        while True:
            yield make()
    except StopIteration as end:
        # An end comes from C, or from the method of an iterator that is written in Python.
        raised_in = end.__traceback__.tb_next if end.__traceback__ is not None else None
        if raised_in is None or raised_in.tb_frame.f_code.co_name == "__next__":
            return
        error: Exception = end
    raise TypeError(
        f"{_named(converter, name)} raised StopIteration in place of an entry, which would have ended the "
        "rows there"
    ) from error


def _named(converter: Any, name: str) -> str:
    kind = type(converter)
    return (
        f"{name}: the converter {kind.__module__}:{kind.__qualname__} ('elementConverter', or the "
        "destination's own)"
    )
