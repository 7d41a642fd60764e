"""Mistakes in what objects of users return, found before the writer calculates with it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Final, TypeVar

from sluice.errors import SluiceError

__all__ = ["MistakeError", "checked_entries", "checked_items", "checked_number", "checked_sizes", "kind_of"]

EntryT = TypeVar("EntryT")

_READY: Final[tuple[type, ...]] = (type(iter(())), type(iter([])))
"""Iterators over entries that are made already."""


class MistakeError(SluiceError, TypeError):
    """Something else was returned than the contract allows. A retry would meet the same code again."""


def kind_of(value: object) -> str:
    """A value as messages show it, without data of the user's."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def checked_items(returned: Any, method: str) -> tuple[Any, ...]:
    """What a method of a writer or a committer returned, if it is a sequence or an iterator.

    Raises:
        MistakeError: it is neither. Of a text, each character would be an item.
    """
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping):
        return tuple(returned)
    raise MistakeError(f"{method} returned {kind_of(returned)}: allowed is a sequence, such as a list")


def checked_number(answer: Any, asked: str, name: str) -> Any:
    """What a rate limiting strategy answered, if it is a number.

    Args:
        answer: the strategy's.
        asked: the attribute or method that it comes from.
        name: the destination's, for messages.

    Raises:
        MistakeError: it is none.
    """
    if isinstance(answer, Real):
        return answer
    raise MistakeError(
        f"{name}: {asked} of the rate limiting strategy is {kind_of(answer)}: allowed is a number"
    )


def checked_sizes(size_of: Callable[[EntryT], int], entries: Sequence[EntryT], name: str) -> list[int]:
    """The sizes of entries in bytes, as `size_in_bytes` of a destination counts them.

    The writer decides by comparisons how many entries there is room for. NaN is neither more nor less than
    anything, so rows would be left out without an error.

    Args:
        size_of: the size of an entry.
        entries: to be sent.
        name: the destination's, for messages.

    Raises:
        MistakeError: not each of them has one.
    """
    sizes = list(map(size_of, entries))
    wrong = None
    if len(sizes) < len(entries):  # `map` has taken the error for the end of its entries
        wrong = "no size for an entry (it raised StopIteration)"
    else:
        with contextlib.suppress(TypeError):
            # Three passes in C cost less than one look at each size in Python. A sum with NaN in it is NaN.
            if not sizes or (min(sizes) >= 0 and sum(sizes) >= 0):
                return sizes
        wrong = next(filter(None, map(_wrong_size, sizes)), "sizes that cannot be compared")
    raise MistakeError(f"{name}: size_in_bytes returned {wrong}: allowed are bytes, from 0")


def _wrong_size(size: Any) -> str:
    """A size as messages show it; empty if it is allowed."""
    try:
        return "" if size >= 0 else str(size)
    except TypeError:
        return kind_of(size)


def checked_entries(returned: Iterable[EntryT], converter: object, name: str) -> Iterator[EntryT]:
    """The entries that `convert` returned. Raises where StopIteration is not an end, but a mistake.

    `map` and `filter` pass on what makes an entry raises, and all rows from there on would be lost without an
    error. A generator makes a RuntimeError of it. Code that swallows it inside, as `list` and `chain` do,
    cannot be detected.

    Args:
        returned: by `convert`.
        converter: whose it is.
        name: the destination's, for messages.

    Raises:
        TypeError: at once: these are not entries; from the iterator: StopIteration in place of an entry.
    """
    owner = (
        f"{name}: the converter {type(converter).__module__}:{type(converter).__qualname__} "
        "('elementConverter', or the destination's own)"
    )
    # Of a text, each character would be an entry.
    if not isinstance(returned, str | bytes | bytearray | Mapping):
        with contextlib.suppress(TypeError):
            entries = iter(returned)
            is_sure_to_end = inspect.isgenerator(entries) or type(entries) in _READY
            return entries if is_sure_to_end else _until_the_end(entries, owner)
    raise TypeError(f"{owner} returned {type(returned).__name__} from convert, and no entries")


def _until_the_end(entries: Iterator[EntryT], owner: str) -> Iterator[EntryT]:
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
        f"{owner} raised StopIteration in place of an entry, which would have ended the rows there"
    ) from error
