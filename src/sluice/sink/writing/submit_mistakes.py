"""Mistakes in what `submit` of a destination returns, found before the writer acts on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any, TypeVar

from sluice.errors import SluiceError
from sluice.sink.contracts import Rejection, SubmitResult
from sluice.sink.writing.buffer import Batch

__all__ = ["SubmitMistakeError", "checked_result"]

EntryT = TypeVar("EntryT")

_LONGEST_CODE = 100
"""Characters of a code in a message."""


class SubmitMistakeError(SluiceError, TypeError):
    """`submit` returned something else than its contract allows: a retry would meet the same code again."""


def checked_result(returned: Any, batch: Batch[EntryT], name: str) -> SubmitResult[EntryT]:
    """What `submit` returned for `batch`, if it can be acted on.

    Args:
        returned: by `submit`.
        batch: the entries that were submitted.
        name: the destination's, for messages.

    Raises:
        SubmitMistakeError: it is no `SubmitResult`, or one with something else in it than is allowed.
    """
    problem = _problem_of(returned) or _problem_of_entries(returned, batch)
    if problem:
        raise SubmitMistakeError(f"{name}: submit returned {problem}")
    result: SubmitResult[EntryT] = returned
    return result


def _problem_of(returned: Any) -> str:
    """What is wrong with it, whatever was submitted; empty if nothing is."""
    if not isinstance(returned, SubmitResult):
        return (
            f"no SubmitResult, but {_kind(returned)}: allowed is a SubmitResult, with the entries that were "
            "refused in 'failed'"
        )
    for field, value in (("failed", returned.failed), ("rejected", returned.rejected)):
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            return f"a SubmitResult whose '{field}' is {_kind(value)}: allowed is a sequence, such as a list"
    for each in returned.rejected:
        if not isinstance(each, Rejection):
            return (
                f"a SubmitResult whose 'rejected' holds {_kind(each)}: allowed is a Rejection, with the "
                "submitted entry and a reason"
            )
    return _problem_of_codes(returned.codes) or _problem_of_pause(returned.retry_after)


def _problem_of_codes(codes: Any) -> str:
    given = ""
    if not isinstance(codes, Mapping):
        given = f"is {_kind(codes)}"
    for code, count in codes.items() if not given else ():
        if not isinstance(code, str) or not isinstance(count, Real):
            given = f"has {_kind(count)} for a code that is {_kind(code)}"
        elif not float(count) >= 0:  # NaN is no number of entries either
            given = f"has {count} for code {code[:_LONGEST_CODE]!r}"
    return (
        given
        and f"a SubmitResult whose 'codes' {given}: allowed is a mapping of text to numbers of 0 or more"
    )


def _problem_of_pause(seconds: Any) -> str:
    if seconds is None or isinstance(seconds, Real):
        return ""
    return f"a SubmitResult whose 'retry_after' is {_kind(seconds)}: allowed are seconds, or None"


def _problem_of_entries(result: SubmitResult[EntryT], batch: Batch[EntryT]) -> str:
    """What is wrong with the entries that it names; their data is not shown."""
    rejected = [each.entry for each in result.rejected]
    named = set(map(id, result.failed)).union(map(id, rejected))
    if not named:
        return ""
    if len(named) == len(result.failed) + len(rejected) and named.issubset(map(id, batch)):
        return ""  # the submitted objects themselves, as nearly always: faster than to find them
    try:
        found = batch.find(result.failed)
        batch.find(rejected, besides=found)
    except Exception as error:  # noqa: BLE001 - comparing entries may raise anything
        return (
            f"a SubmitResult whose 'failed' or 'rejected' names other entries than were submitted ({error}): "
            "allowed are the submitted objects themselves, each of them once"
        )
    return ""


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
