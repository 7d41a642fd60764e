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
from sluice.sink.writing.scheduler import Request

__all__ = ["Answer", "Submitter", "checked_result"]

EntryT = TypeVar("EntryT")


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
                    submitted.close()  # or Python warns that it was never awaited
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
        return Answer(request.number, self.clock(), checked_result(returned, self.name))

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


def checked_result(returned: Any, name: str) -> SubmitResult[Any]:
    """What `submit` returned, if it can be acted on.

    Args:
        returned: by `submit`.
        name: the destination's, for messages.

    Raises:
        MistakeError: it is no `SubmitResult`, or one with something else in it than is allowed.
    """
    problem = _problem_of(returned)
    if problem:
        raise MistakeError(f"{name}: submit returned {problem}")
    result: SubmitResult[Any] = returned
    return result


def _is_sequence(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def _is_count_by_code(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(code, str) and isinstance(count, Real) and float(count) >= 0
        for code, count in value.items()
    )


_ALLOWED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "failed": (_is_sequence, "a sequence, such as a list"),
    "rejected": (_is_sequence, "a sequence, such as a list"),
    "codes": (_is_count_by_code, "a mapping of text to numbers of 0 or more"),
    "retry_after": (lambda value: value is None or isinstance(value, Real), "a number of seconds, or None"),
}


def _problem_of(returned: Any) -> str:
    """The problem with the submitted object; empty if there is none."""
    if not isinstance(returned, SubmitResult):
        return (
            f"no SubmitResult, but {kind_of(returned)}: allowed is a SubmitResult, with the entries that "
            "were refused in 'failed'"
        )
    for part, (is_allowed, allowed) in _ALLOWED.items():
        value = getattr(returned, part)
        if not is_allowed(value):
            return f"a SubmitResult whose '{part}' is {kind_of(value)}: allowed is {allowed}"
    for each in returned.rejected:
        if not isinstance(each, Rejection):
            return (
                f"a SubmitResult whose 'rejected' holds {kind_of(each)}: allowed is a Rejection, with the "
                "submitted entry and a reason"
            )
    return ""
