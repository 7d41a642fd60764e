"""One call of the service: retried with its operation's backoff, its errors said in the library's terms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from botocore import xform_name
from botocore.exceptions import ClientError

from sluice.aws.clients import client_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.endpoint_state import EndpointState, endpoint_state
from sluice.aws.errors import DamagedAnswerError, endpoint_of, is_unanswered, translate
from sluice.errors import ServiceError, SluiceError
from sluice.retry import Backoff, Retrier

__all__ = ["Calls"]

T = TypeVar("T")

# An endpoint that never answered is more likely mistyped than busy: say so within seconds.
_FIRST_CONTACT_RETRIES: Final = 1


class Calls:
    """Calls one service in one account and region.

    Plain data with methods: it may be pickled, and used from several threads. SDK clients and what is
    known of the endpoint belong to the process.

    Args:
        connection: how to reach the service.
        service: as the SDK names it (``kinesis``).
        backoffs: by the operation's name in the API.
        retrier: its sleep is where a stopping task gets out.
        clock: local time in seconds since the epoch.
        is_known: the endpoint has answered another process of the query: it is not given up early.
    """

    def __init__(  # noqa: PLR0913 - the last three are for tests and for tasks
        self,
        connection: ConnectionConfig,
        service: str,
        backoffs: Mapping[str, Backoff],
        *,
        retrier: Retrier | None = None,
        clock: Callable[[], float] = time.time,
        is_known: bool = False,
    ) -> None:
        self._connection = connection
        self._service = service
        self._backoffs = dict(backoffs)
        self._retrier = retrier or Retrier()
        self._clock = clock
        self._is_known = is_known

    def server_time(self) -> float:
        """Seconds since the epoch by the local clock, unless answers showed that it is off."""
        return self._clock() + _state_of(client_for(self._connection, self._service)).skew

    def call(
        self,
        operation: str,
        target: str,
        request: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
        *,
        recover: Callable[[ServiceError], T | None] = lambda _error: None,
    ) -> T:
        """Calls the service until `read` has made sense of an answer, and returns what it made of it.

        Args:
            operation: as the API spells it.
            target: what it is about, for messages.
            request: the operation's parameters.
            read: may raise a SluiceError of its own, which is retried if it says so.
            recover: what to return in spite of an error; None lets the error be.

        Raises:
            ServiceError: the last one, when it is not worth a retry or none is left.
        """
        client = client_for(self._connection, self._service)
        method = getattr(client, xform_name(operation))
        contact = _state_of(client)
        unanswered = 0

        def attempt() -> T:
            nonlocal unanswered
            sent = self._clock()
            try:
                answer = method(**request)
                contact.note(answer, sent, self._clock())
                return _understood(answer, read)
            except SluiceError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the SDK raises must not get further
                if isinstance(error, ClientError) and error.operation_name == operation:
                    contact.note(error.response, sent, self._clock())
                endpoint = endpoint_of(error, client.meta.endpoint_url)
                problem = translate(error, operation=operation, target=target, endpoint=endpoint)
                is_known = self._is_known or endpoint_state(endpoint).reached
                if is_unanswered(problem) and not is_known:
                    unanswered += 1
                    problem.retryable = problem.retryable and unanswered <= _FIRST_CONTACT_RETRIES
            if (instead := recover(problem)) is not None:
                return instead
            raise problem from None

        return self._retrier.call(self._backoffs[operation], attempt)


def _state_of(client: Any) -> EndpointState:
    return endpoint_state(client.meta.endpoint_url)


def _understood(answer: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    # What is missing must not be taken for "nothing there": a page without NextShardIterator ends a shard.
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedAnswerError(f"the answer is not what it should be: {error!r}") from None
