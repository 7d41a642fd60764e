"""One call of an AWS service: retried with the backoff of its operation, its errors made ServiceErrors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from botocore import xform_name
from botocore.exceptions import ClientError

from sluice.aws.calling.clients import client_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.endpoint_state import EndpointState, endpoint_state
from sluice.aws.errors import (
    EXPIRED_CREDENTIALS,
    UNKNOWN_CREDENTIALS,
    DamagedAnswerError,
    endpoint_of,
    is_clock_refused,
    is_unanswered,
    translate,
)
from sluice.errors import ServiceError, SluiceError
from sluice.retry import Backoff, Retrier

__all__ = ["Calls", "failure_of"]

T = TypeVar("T")

# An endpoint that never answered is more likely mistyped than busy: fail within seconds.
_FIRST_CONTACT_RETRIES: Final = 1

_PLANNING_WAIT: Final = 10.0
"""Seconds for which a plan waits for a read. The pages that planners ask for come within a second."""


@dataclass(frozen=True)
class Calls:
    """Calls one service in one account and region. May be used from several threads.

    Spark may pickle it: SDK clients and the state of the endpoint belong to the process, not to this object.

    Args:
        connection: how to reach the service.
        service: as the SDK names it (``kinesis``).
        backoffs: operation (``GetRecords``) to how it is retried.
        retrier: its sleep may raise, which ends the retries of a task that is stopping.
        clock: local time, in seconds since the epoch.
        is_endpoint_known: the endpoint has answered another process of the query, so it is not mistyped and
            gets all retries from the first call on.
    """

    connection: ConnectionConfig
    service: str
    backoffs: Mapping[str, Backoff]
    retrier: Retrier = field(default_factory=Retrier)
    clock: Callable[[], float] = time.time
    is_endpoint_known: bool = False

    def for_planning(self, *reads: str) -> Calls:
        """The same for a process that plans batches, which continues without a shard that cannot be read
        soon.

        A silent service would hold the whole query for the read timeout, once for each attempt, and a shard
        with a greedy reader for all retries.

        Args:
            reads: the operations that read one shard. All others are for the whole query, which waits.
        """
        given_up = {
            name: replace(self.backoffs[name], repeats_throttled=False, give_up_after=_PLANNING_WAIT)
            for name in reads
        }
        timeout = min(self.connection.read_timeout, _PLANNING_WAIT)
        connection = replace(self.connection, read_timeout=timeout)
        return replace(self, connection=connection, backoffs={**self.backoffs, **given_up})

    def server_time(self) -> float:
        """Seconds since the epoch: not later than the service's own time, as far as answers have shown it."""
        return self.clock() + self._endpoint_state().skew

    def record_future(self, instant: float) -> None:
        """The service has refused `instant` (seconds since the epoch) as later than its own time."""
        self._endpoint_state().record_future(instant, self.clock())

    def _endpoint_state(self) -> EndpointState:
        return endpoint_state(client_for(self.connection, self.service).meta.endpoint_url)

    def call(
        self,
        operation: str,
        target: str,
        request: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        *,
        recover: Callable[[ServiceError], T | None] = lambda _error: None,
    ) -> T:
        """Calls an operation, retries it where that may help, and returns what `read` makes of the answer.

        Args:
            operation: as the API spells it.
            target: the stream, shard or consumer that the call is about, for messages.
            request: the operation's parameters.
            read: takes the answer. A SluiceError that it raises is retried where it is retryable.
            recover: takes an error, and returns the result to have in spite of it, or None to let the error
                stand. May change the error's attributes, or raise another one.

        Raises:
            ServiceError: the last one, when it is not retryable or no retry is left.
        """
        unanswered = unknown = 0

        def attempt() -> T:
            nonlocal unanswered, unknown
            client = client_for(self.connection, self.service)  # one with new credentials, if they expired
            state = endpoint_state(client.meta.endpoint_url)
            sent = self.clock()
            try:
                answer = getattr(client, xform_name(operation))(**request)
                state.record_answer(answer, sent, self.clock())
                return _read_answer(answer, read)
            except SluiceError:
                raise
            except Exception as error:  # noqa: BLE001 - all errors of the SDK become ServiceErrors
                if isinstance(error, ClientError) and error.operation_name == operation:
                    state.record_answer(error.response, sent, self.clock())
                endpoint = endpoint_of(error, client.meta.endpoint_url)
                problem = failure_of(error, self.connection, operation, target, endpoint)
                if problem.code in UNKNOWN_CREDENTIALS:
                    unknown += 1
                    problem.retryable = problem.retryable and unknown == 1  # there are others, or it is wrong
                is_known = self.is_endpoint_known or endpoint_state(endpoint).reached
                if is_unanswered(problem) and not is_known:
                    unanswered += 1
                    problem.retryable = problem.retryable and unanswered <= _FIRST_CONTACT_RETRIES
            if (result := recover(problem)) is not None:
                return result
            raise problem from None

        return self.retrier.call(self.backoffs[operation], attempt)


def failure_of(
    error: Exception, connection: ConnectionConfig, operation: str, target: str, endpoint: str
) -> ServiceError:
    """The ServiceError for what a call has raised, retryable where another attempt may help.

    That may also be so because the next attempt is signed anew: at another time, or with credentials that
    were loaded anew in place of those that have expired or are not known any more.

    Args:
        connection: of the call.
        operation, target, endpoint: see `translate`.
    """
    problem = translate(error, operation=operation, target=target, endpoint=endpoint)
    is_refused = problem.code in EXPIRED_CREDENTIALS | UNKNOWN_CREDENTIALS
    is_mended = is_refused and not connection.has_fixed_credentials
    problem.retryable = problem.retryable or is_mended or is_clock_refused(problem)
    return problem


def _read_answer(answer: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    # A missing field must not pass for "nothing there": a page without NextShardIterator ends its shard.
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedAnswerError(f"the answer is not what it should be: {error!r}") from None
