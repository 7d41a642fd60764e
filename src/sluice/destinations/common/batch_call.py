"""One batch operation of one service: calling it, and telling what passes from what does not."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from botocore import exceptions as sdk

from sluice.aws.clients import client_for, endpoint_for
from sluice.aws.connection import ConnectionConfig
from sluice.aws.errors import is_unanswered, redact, translate
from sluice.aws.responses import Outcome
from sluice.errors import OptionError, ServiceError
from sluice.sink.contracts import Rejection, SubmitResult

__all__ = ["BatchCall", "Refusal", "Verdict"]

EntryT = TypeVar("EntryT")

# An endpoint that has never answered, for this long (seconds), is taken for a wrong one.
_FIRST_CONTACT: Final = 5.0
# Those that have, while this process lives: a destination is made anew for every epoch.
_known: Final[set[tuple[ConnectionConfig, str]]] = set()
# Codes of single entries that speak of the whole target: no entry will be accepted.
_OF_THE_TARGET: Final = re.compile(
    r"AccessDenied|NotAuthorized|NotFound|NonExistent|UnrecognizedClient|ExpiredToken|InvalidSignature"
    r"|InvalidKMS|^Kms(?!Throttled)|^KMS(?!Throttling)"
)
# And those that speak of the entry: it will be refused again. All others are tried again, as services name
# here what they could not do just now.
_OF_THE_ENTRY: Final = re.compile(r"^(Invalid|Validation)")

Verdict = Literal["again", "never", "stop"]


class Refusal(NamedTuple):
    """What a service says of an entry that it did not accept.

    Attributes:
        code: the service's.
        message: the service's.
        verdict: ``again``: it may be accepted later; ``never``: the entry will be refused again;
            ``stop``: so will every other one.
    """

    code: str
    message: str
    verdict: Verdict


class BatchCall:
    """An operation that takes a batch, as a destination calls it: once, without retrier.

    Args:
        connection: how to reach the service.
        service: as the SDK names it (``sqs``).
        operation: as the service spells it (``SendMessageBatch``).
        target: what is written to, for messages.
        transient: codes of errors that will pass, beyond those that every service has.
        client: makes the SDK's client; replaced in tests.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - what an operation is called by
        self,
        connection: ConnectionConfig,
        service: str,
        operation: str,
        target: str,
        *,
        transient: frozenset[str] = frozenset(),
        client: Callable[[ConnectionConfig, str], Any] = client_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._service = service
        self._operation = operation
        self._method = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
        self._target = target
        self._transient = transient
        self._make_client = client
        self._clock = clock
        self._first_try: float | None = None

    def __call__(self, **parameters: Any) -> dict[str, Any]:
        """Calls the operation.

        Raises:
            ServiceError: the call failed: nothing is known to have been accepted.
            OptionError: no client can be made from the connection options.
        """
        if self._first_try is None:
            self._first_try = self._clock()
        client = self._make_client(self._connection, self._service)
        try:
            response: dict[str, Any] = getattr(client, self._method)(**parameters)
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises, it leaves as a ServiceError
            raise self.translated(error) from None
        _known.add((self._connection, self._service))
        return response

    def damaged(self, what: str) -> ServiceError:
        """The error for an answer that does not fit what was asked; the batch may be sent again."""
        return ServiceError(
            f"{self._operation} of {self._target}: {what}",
            operation=self._operation,
            target=self._target,
            code="DamagedAnswer",
            retryable=True,
        )

    def outcome(self, entries: Sequence[EntryT], refused: Mapping[int, Refusal]) -> SubmitResult[EntryT]:
        """What became of `entries`, of which those at the places in `refused` were not accepted.

        Raises:
            ServiceError: nothing will be accepted any more. Not to be retried.
        """
        again: list[int] = []
        rejected: list[Rejection[EntryT]] = []
        for place, (code, message, verdict) in sorted(refused.items()):
            if verdict == "stop":
                error = self.translated(
                    sdk.ClientError({"Error": {"Code": code, "Message": message}}, self._operation)
                )
                error.retryable = False
                raise error
            if verdict == "never":
                rejected.append(Rejection(entries[place], f"{code}: {redact(message)}"))
            else:
                again.append(place)
        return SubmitResult(
            failed=[entries[place] for place in again],
            codes=Counter(refused[place].code for place in again),
            rejected=rejected,
        )

    def outcome_in_order(
        self, entries: Sequence[EntryT], outcomes: Sequence[Outcome]
    ) -> SubmitResult[EntryT]:
        """What became of `entries`, by an answer with one outcome for each, in their order.

        Its count of failures is not relied upon: each outcome speaks for itself, by its ``ErrorCode``.

        Raises:
            ServiceError: the answer does not fit the entries, or as `outcome` does.
        """
        if len(outcomes) != len(entries):
            raise self.damaged(f"{len(outcomes)} results for {len(entries)} records")
        refused = {
            place: Refusal(each.error_code, each.error_message or "", self.verdict(each.error_code))
            for place, each in enumerate(outcomes)
            if each.error_code
        }
        return self.outcome(entries, refused)

    def verdict(self, code: str) -> Verdict:
        """What the code of a single entry says of another attempt."""
        name = re.split(r"[.#]", code)[-1]
        if name in self._transient:
            return "again"
        if _OF_THE_TARGET.search(name):
            return "stop"
        return "never" if _OF_THE_ENTRY.search(name) else "again"

    def is_passing(self, code: str) -> bool:
        """Whether the code of a single entry says that it may well be accepted later."""
        return self.translated(sdk.ClientError({"Error": {"Code": code}}, self._operation)).retryable

    def is_fatal(self, error: Exception) -> bool:
        """Fatal is what another attempt will not change: nothing to write to, no access, bad credentials.

        Throttling, a failure of the service, a timeout or a lost connection is not, unless the
        endpoint has never answered at all: then it is more likely to be the wrong one.
        """
        if isinstance(error, OptionError):
            return True
        if not isinstance(error, ServiceError):
            error = self.translated(error)
        if not error.retryable:
            return True
        known = (self._connection, self._service) in _known
        if known or not is_unanswered(error) or error.code == "ReadTimeoutError":
            return False
        return self._first_try is not None and self._clock() - self._first_try >= _FIRST_CONTACT

    def translated(self, error: Exception) -> ServiceError:
        """What `error` of the SDK means."""
        translated = translate(
            error,
            operation=self._operation,
            target=self._target,
            endpoint=endpoint_for(self._connection, self._service),
        )
        if translated.code in self._transient:
            translated.retryable = True
        if not is_unanswered(translated):
            _known.add((self._connection, self._service))
        return translated
