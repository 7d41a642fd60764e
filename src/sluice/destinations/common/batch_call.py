"""Calls one batch operation of an AWS service, and judges its errors and its answers."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from botocore import exceptions as sdk
from botocore import xform_name

from sluice.aws.calling.clients import client_for, endpoint_for
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import (
    EXPIRED_CREDENTIALS,
    UNKNOWN_CREDENTIALS,
    DamagedAnswerError,
    is_unanswered,
    redact,
    translate,
)
from sluice.aws.wire.responses import Outcome
from sluice.destinations.common.first_contact import FirstContact
from sluice.errors import OptionError, ServiceError
from sluice.sink import Rejection, SubmitResult
from sluice.sink.rate.causes import Cause, cause_of

__all__ = ["NO_RESULT", "BatchCall", "Refusal", "Verdict"]

EntryT = TypeVar("EntryT")

# If credentials of a file, of the environment or of a role have expired, how long (seconds) to wait for new
# ones: every request loads them anew.
_RENEWAL: Final = 30.0

# Error codes of single entries. These concern the target as a whole: it will accept no entry.
_TARGET_CODES: Final = re.compile(
    r"AccessDenied|NotAuthorized|NotFound|NonExistent|UnrecognizedClient|ExpiredToken|InvalidSignature"
    r"|InvalidKMS|^Kms(?!Throttled)|^KMS(?!Throttling)"
)
# These concern the entry: it would be refused again. All other codes mean temporary failures.
_ENTRY_CODES: Final = re.compile(r"^(Invalid|Validation)")
# The service uses these only for an entry or its size.
_CERTAIN_CODES: Final = re.compile(r"ItemCollectionSizeLimitExceeded|MessageTooLong|TooLarge|TooLong")

# Our own code, for an entry that the answer neither accepts nor refuses.
NO_RESULT: Final = "NoResult"

Verdict = Literal["retry", "reject", "fatal"]


class Refusal(NamedTuple):
    """The service's reason for refusing one entry of a batch.

    Attributes:
        code: the service's error code.
        message: the service's error message.
        verdict: ``retry``: the entry may be accepted later. ``reject``: the service will never accept it.
            ``fatal``: the service will accept no entry.
    """

    code: str
    message: str
    verdict: Verdict


class BatchCall:
    """One batch operation on one target. Calls it without retries: the writer retries.

    Args:
        connection: how to reach the service.
        service: as the SDK names it (``sqs``).
        operation: as the service spells it (``SendMessageBatch``).
        target: the stream, table or queue, for messages.
        transient: error codes to retry, in addition to the codes of all services. says_entry:
            whether a sentence of the service, without the user's names, is about an entry.
        clock: monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - four name the operation
        self,
        connection: ConnectionConfig,
        service: str,
        operation: str,
        target: str,
        *,
        transient: frozenset[str] = frozenset(),
        says_entry: Callable[[str], bool] = lambda _sentence: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._service = service
        self._operation = operation
        self._method = xform_name(operation)
        self._target = target
        self._transient = transient
        self._says_entry = says_entry
        self._clock = clock
        self.place = (connection.endpoint_url or "", connection.region or "", service, target)
        self._endpoint = endpoint_for(connection, service)
        self._contact = FirstContact((connection.endpoint_url, connection.region, service), clock)
        self._expired_since: float | None = None
        self._has_answered = False  # with credentials that the service took

    def __call__(self, **parameters: Any) -> dict[str, Any]:
        """Calls the operation once.

        Raises:
            ServiceError: the call failed; no entry is known to have been accepted.
            OptionError: no client can be made from the connection options.
        """
        self._contact.started()
        client = client_for(self._connection, self._service)
        try:
            answer: dict[str, Any] = getattr(client, self._method)(**parameters)
        except DamagedAnswerError as error:
            self._contact.answered()
            raise self.damaged_answer(redact(str(error))) from None
        except Exception as error:  # noqa: BLE001 - any error of the SDK becomes a ServiceError
            # If no option names a region, the SDK's chain does.
            self._endpoint = self._endpoint or client.meta.endpoint_url
            raise self.translated(error) from None
        self._contact.answered()
        self._expired_since = None
        self._has_answered = True
        return answer

    def damaged_answer(self, problem: str) -> ServiceError:
        """A retryable error for an answer that does not match the request."""
        return ServiceError(
            f"{self._operation} of {self._target}: {problem}",
            operation=self._operation,
            target=self._target,
            code="DamagedAnswer",
            retryable=True,
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context for code that reads an answer. Raises: ServiceError: the answer is JSON, but not in the
        operation's form. Retryable.
        """
        try:
            yield
        except msgspec.ValidationError as error:
            raise self.damaged_answer(f"the answer is not what it should be: {error}") from None

    def result(self, entries: Sequence[EntryT], answers: Sequence[object]) -> SubmitResult[EntryT]:
        """The result of a request.

        Args:
            entries: the entries of the request.
            answers: a `Refusal`, or something else if the entry was accepted, for each of them.

        Raises:
            ServiceError: the verdict of an entry is ``fatal``. Not retryable.
        """
        failed: list[EntryT] = []
        rejected: list[Rejection[EntryT]] = []
        codes: Counter[str] = Counter()
        for entry, answer in zip(entries, answers, strict=True):
            if not isinstance(answer, Refusal):
                continue
            code, message, verdict = answer
            if verdict == "fatal":
                error = self.translated(
                    sdk.ClientError({"Error": {"Code": code, "Message": message}}, self._operation)
                )
                error.retryable = False
                raise error
            if verdict == "reject":
                rejected.append(Rejection(entry, f"{code}: {redact(message)}"))
            else:
                failed.append(entry)
                codes[code] += 1
        return SubmitResult(failed=failed, codes=codes, rejected=rejected)

    def refusals_in_order(
        self, entries: Sequence[EntryT], outcomes: Sequence[Outcome]
    ) -> list[Refusal | None]:
        """The outcome of each entry of a request whose answer lists them in the entries' order.

        An entry was accepted if its outcome has an id and no error code. The answer's count of failures is
        not used.

        Raises:
            ServiceError: there are more or fewer outcomes than entries. Retryable.
        """
        if len(outcomes) != len(entries):
            raise self.damaged_answer(f"{len(outcomes)} results for {len(entries)} records")
        return [self._refusal(each) if each.error_code or not each.id else None for each in outcomes]

    def _refusal(self, outcome: Outcome) -> Refusal:
        code = outcome.error_code or NO_RESULT
        return Refusal(code, outcome.error_message or "", self.verdict(code))

    def verdict(self, code: str) -> Verdict:
        """What to do about an entry that was refused with `code`."""
        name = re.split(r"[.#]", code)[-1]
        if name in self._transient:
            return "retry"
        if _TARGET_CODES.search(name) or (code.startswith("KMS.") and "Throttl" not in code):
            return "fatal"
        return "reject" if _ENTRY_CODES.search(name) else "retry"

    def may_be_for_an_entry(self, error: ServiceError) -> bool:
        """Whether a request may have been refused for one of its entries, or for its size."""
        return (
            not (error.retryable or error.missing or error.credentials)
            and self.verdict(error.code) != "fatal"
        )

    def is_certainly_of_an_entry(self, error: ServiceError) -> bool:
        """Whether a request with a single entry was refused because of that entry. A destination adds its
        service's sentences about entries: see `says_entry`.
        """
        return _CERTAIN_CODES.search(error.code) is not None or self._says_entry(self._sentence_of(error))

    def _sentence_of(self, error: ServiceError) -> str:
        """The service's own sentence, without the name that the user chose for the target."""
        return error.sentence.replace(self._target, "")

    def is_throttling(self, code: str) -> bool:
        """See `Destination.is_throttling`."""
        return cause_of(code, service=self._service) is Cause.LOAD

    def is_transient(self, code: str) -> bool:
        """Whether a whole request that failed with `code` would be retried."""
        return self.translated(sdk.ClientError({"Error": {"Code": code}}, self._operation)).retryable

    def is_fatal(self, error: Exception) -> bool:
        """Whether to give up after `error`, because another attempt would fail, too.

        Fatal: a missing target, no access, a malformed request, bad credentials. Not fatal: throttling,
        failures of the service, timeouts and lost connections. If the endpoint has never answered, the last
        two are fatal 5 s after the first call, because then its address is probably wrong. Credentials that
        have expired are fatal at once if they are options, and otherwise after 30 s, in which the SDK's chain
        may find new ones.
        """
        if isinstance(error, OptionError):
            return True
        if not isinstance(error, ServiceError):
            error = self.translated(error)
        # The service knew the keys before: new ones may be available.
        is_replaced = error.code in UNKNOWN_CREDENTIALS and self._has_answered
        is_refused = error.code in EXPIRED_CREDENTIALS or is_replaced
        if is_refused and not self._connection.has_fixed_credentials:
            now = self._clock()
            self._expired_since = now if self._expired_since is None else self._expired_since
            return now - self._expired_since >= _RENEWAL
        if not error.retryable:
            return True
        without_answer = is_unanswered(error) and error.code != "ReadTimeoutError"
        return without_answer and self._contact.is_given_up

    def translated(self, error: Exception) -> ServiceError:
        """The ServiceError for an error of the SDK."""
        translated = translate(
            error,
            operation=self._operation,
            target=self._target,
            endpoint=self._endpoint,
        )
        answer = error.response if isinstance(error, sdk.ClientError) else {}
        cause = cause_of(
            translated.code,
            service=self._service,
            status=answer.get("ResponseMetadata", {}).get("HTTPStatusCode"),
            message=translated.sentence,
        )
        translated.throttling = cause is Cause.LOAD
        if translated.throttling or translated.code in self._transient:
            translated.retryable = True
        if not is_unanswered(translated):
            self._contact.answered()
        return translated
