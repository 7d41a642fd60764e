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


@dataclass(frozen=True)
class Submitter(Generic[EntryT]):
    """Calls a destination's `submit`. What it raises is in the answer.

    Attributes:
        destination: where requests go.
        name: the destination's, for messages.
        clock: monotonic seconds.
        is_closed: whether the writer is closed. From then on nothing is submitted.
    """

    destination: Destination[EntryT]
    name: str
    clock: Callable[[], float]
    is_closed: Callable[[], bool]

    @property
    def is_asynchronous(self) -> bool:
        """Whether `submit` is a coroutine function, or an object that is called like one."""
        submit: Any = self.destination.submit
        return inspect.iscoroutinefunction(submit) or inspect.iscoroutinefunction(type(submit).__call__)

    def submit(self, request: Request[EntryT]) -> Answer[EntryT]:
        try:
            submitted = self._submitted(request)
            if inspect.isawaitable(submitted):
                if inspect.iscoroutine(submitted):
                    submitted.close()  # or Python warns that nobody has awaited it
                text = f"{self.name}: submit returned an awaitable; make it `async def submit`"
                raise MistakeError(text)  # noqa: TRY301
            return self._answer(request, submitted)
        except BaseException as error:  # noqa: BLE001 - the owner of the state decides if it is fatal
            return self._failure(request, error)

    async def submit_asynchronously(self, request: Request[EntryT]) -> Answer[EntryT]:
        try:
            return self._answer(request, await self._submitted(request))
        except BaseException as error:  # noqa: BLE001 - as above; a cancellation ends the task all the same
            return self._failure(request, error)

    def _submitted(self, request: Request[EntryT]) -> Any:
        if self.is_closed():  # since this request was handed over
            raise SluiceError(f"{self.name}: the writer is closed")
        return self.destination.submit(request.entries)

    def _answer(self, request: Request[EntryT], returned: Any) -> Answer[EntryT]:
        return Answer(request.number, self.clock(), checked_result(returned, request.batch, self.name))

    def _failure(self, request: Request[EntryT], error: BaseException) -> Answer[EntryT]:
        if isinstance(error, asyncio.CancelledError):
            # By an event loop that `submit` runs itself. When the writer cancels, it reads no answers.
            error = ServiceError(
                f"{self.name}: the request was cancelled before it had an answer",
                target=self.name,
                code=type(error).__name__,
                retryable=True,
            )
        return Answer(request.number, self.clock(), error=error)


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
