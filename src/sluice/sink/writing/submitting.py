"""Submits requests, checks what `submit` returns, and says what became of each.

Nothing here touches the state of a writer: an `Answer` goes to its mailbox.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Final, Generic, TypeVar

from sluice.errors import ServiceError, SluiceError
from sluice.sink.contracts import Destination, Rejection, SubmitResult
from sluice.sink.user_code.mistakes import MistakeError, kind_of
from sluice.sink.writing.buffer import Batch
from sluice.sink.writing.scheduler import Request

__all__ = ["Answer", "Submitter", "checked_result"]

EntryT = TypeVar("EntryT")

_LONGEST_CODE: Final = 100
"""Characters of a code in a message."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[EntryT]):
    """What became of a request: what `submit` returned, or what it raised, and when."""

    request: int
    at: float
    result: SubmitResult[EntryT] = field(default_factory=SubmitResult)
    error: BaseException | None = None


class Submitter(Generic[EntryT]):
    """Calls a destination's `submit`. What it raises is in the answer.

    Args:
        destination: where requests go.
        name: the destination's, for messages.
        clock: monotonic seconds.
        is_closed: whether the writer is closed. From then on nothing is submitted.
    """

    def __init__(
        self,
        destination: Destination[EntryT],
        name: str,
        clock: Callable[[], float],
        is_closed: Callable[[], bool],
    ) -> None:
        self._destination = destination
        self._name = name
        self._clock = clock
        self._is_closed = is_closed

    @property
    def is_asynchronous(self) -> bool:
        """Whether `submit` is a coroutine function, or an object that is called like one."""
        submit: Any = self._destination.submit
        return inspect.iscoroutinefunction(submit) or inspect.iscoroutinefunction(type(submit).__call__)

    def submit(self, request: Request[EntryT]) -> Answer[EntryT]:
        if self._is_closed():  # since this request was handed to its thread
            return self._unsent(request)
        try:
            submitted: Any = self._destination.submit(request.entries)
            if inspect.isawaitable(submitted):
                if inspect.iscoroutine(submitted):
                    submitted.close()  # or Python warns that nobody has awaited it
                text = f"{self._name}: submit returned an awaitable; make it `async def submit`"
                raise MistakeError(text)  # noqa: TRY301
            at = self._clock()
            return Answer(request.number, at, checked_result(submitted, request.batch, self._name))
        except asyncio.CancelledError as error:  # by an event loop that `submit` runs itself
            return self._cancelled(request, error)
        except BaseException as error:  # noqa: BLE001 - the owner of the state decides if it is fatal
            return Answer(request.number, self._clock(), error=error)

    async def submit_asynchronously(self, request: Request[EntryT]) -> Answer[EntryT]:
        if self._is_closed():
            return self._unsent(request)
        try:
            submitted: Any = self._destination.submit(request.entries)
            returned = await submitted
            at = self._clock()
            return Answer(request.number, at, checked_result(returned, request.batch, self._name))
        except asyncio.CancelledError as error:
            return self._cancelled(request, error)
        except BaseException as error:  # noqa: BLE001 - as above; a cancellation ends the task all the same
            return Answer(request.number, self._clock(), error=error)

    def _cancelled(self, request: Request[EntryT], error: asyncio.CancelledError) -> Answer[EntryT]:
        """Of something that `submit` waited for. When the writer itself cancels, it reads no answers."""
        cancelled = ServiceError(
            f"{self._name}: the request was cancelled before it had an answer",
            target=self._name,
            code=type(error).__name__,
            retryable=True,
        )
        return Answer(request.number, self._clock(), error=cancelled)

    def _unsent(self, request: Request[EntryT]) -> Answer[EntryT]:
        return Answer(request.number, self._clock(), error=SluiceError(f"{self._name}: the writer is closed"))


def checked_result(returned: Any, batch: Batch[EntryT], name: str) -> SubmitResult[EntryT]:
    """What `submit` returned for `batch`, if it can be acted on.

    Args:
        returned: by `submit`.
        batch: the entries that were submitted.
        name: the destination's, for messages.

    Raises:
        MistakeError: it is no `SubmitResult`, or one with something else in it than is allowed.
    """
    problem = _problem_of(returned) or _problem_of_entries(returned, batch)
    if problem:
        raise MistakeError(f"{name}: submit returned {problem}")
    result: SubmitResult[EntryT] = returned
    return result


def _problem_of(returned: Any) -> str:
    """What is wrong with it, whatever was submitted; empty if nothing is."""
    if not isinstance(returned, SubmitResult):
        return (
            f"no SubmitResult, but {kind_of(returned)}: allowed is a SubmitResult, with the entries that "
            "were refused in 'failed'"
        )
    for part, value in (("failed", returned.failed), ("rejected", returned.rejected)):
        if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
            given = f"a SubmitResult whose '{part}' is {kind_of(value)}"
            return f"{given}: allowed is a sequence, such as a list"
    for each in returned.rejected:
        if not isinstance(each, Rejection):
            return (
                f"a SubmitResult whose 'rejected' holds {kind_of(each)}: allowed is a Rejection, with the "
                "submitted entry and a reason"
            )
    return _problem_of_codes(returned.codes) or _problem_of_pause(returned.retry_after)


def _problem_of_codes(codes: Any) -> str:
    given = ""
    if not isinstance(codes, Mapping):
        given = f"is {kind_of(codes)}"
    for code, count in codes.items() if not given else ():
        if not isinstance(code, str) or not isinstance(count, Real):
            given = f"has {kind_of(count)} for a code that is {kind_of(code)}"
        elif not float(count) >= 0:  # NaN is no number of entries either
            given = f"has {count} for code {code[:_LONGEST_CODE]!r}"
    return (
        given
        and f"a SubmitResult whose 'codes' {given}: allowed is a mapping of text to numbers of 0 or more"
    )


def _problem_of_pause(seconds: Any) -> str:
    if seconds is None or isinstance(seconds, Real):
        return ""
    return f"a SubmitResult whose 'retry_after' is {kind_of(seconds)}: allowed are seconds, or None"


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
