"""Submits requests, on a thread or on the event loop, and says what became of each.

Nothing here touches the state of a writer: an `Answer` goes to its mailbox.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sluice.errors import ServiceError, SluiceError
from sluice.sink.contracts import Destination, SubmitResult
from sluice.sink.writing.scheduler import Request
from sluice.sink.writing.submit_mistakes import SubmitMistakeError, checked_result

__all__ = ["Answer", "Submitter"]

EntryT = TypeVar("EntryT")


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
                raise SubmitMistakeError(text)  # noqa: TRY301
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
