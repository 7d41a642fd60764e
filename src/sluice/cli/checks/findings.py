"""What checks find, and how the outcome of a call becomes a finding."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import is_unanswered
from sluice.errors import ServiceError
from sluice.retry import Backoff, Retrier

__all__ = ["Finding", "Findings", "Status", "is_denied"]

T = TypeVar("T")

Status = Literal["ok", "failed", "warning", "unknown"]

_DENIED: Final = frozenset(
    {
        "403",
        "AccessDenied",
        "AccessDeniedException",
        "AuthorizationError",
        "AuthorizationErrorException",
        "Forbidden",
        "KMSAccessDeniedException",
        "UnauthorizedOperation",
    }
)
_ACTION: Final = re.compile(r"not authorized to perform: ([a-z0-9-]+:[A-Za-z0-9]+)")
_BACKOFF: Final = Backoff(max_retries=2, base=0.5, max=2.0, exponent=2.0)


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Attributes:
        what: what was checked.
        status: ``unknown``: only a write could show it. ``warning``: the query runs all the same.
        text: why, or the result.
        action: the IAM action that the query needs; None if it needs none.
        is_missing: the caller lacks the permission for `action`.
        is_absent: the checked object does not exist.
    """

    what: str
    status: Status
    text: str
    action: str | None = None
    is_missing: bool = False
    is_absent: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.what,
            "status": self.status,
            "action": self.action,
            "isMissing": self.is_missing,
            "text": self.text,
        }


@dataclass
class Findings:
    """Collects findings.

    Args:
        connection: how services are reached.
        retrier: retries calls.

    Attributes:
        found: the findings so far.
        is_unreachable: an endpoint did not answer, and further calls would only wait.
    """

    connection: ConnectionConfig
    retrier: Retrier = field(default_factory=Retrier)
    found: list[Finding] = field(default_factory=list)
    is_unreachable: bool = False

    def add(self, what: str, status: Status, text: str, action: str | None = None) -> None:
        self.found.append(Finding(what, status, text, action))

    def add_missing(self, what: str, action: str, why: str, *, status: Status = "failed") -> None:
        """The caller lacks a permission."""
        optional = "" if status == "failed" else "; the query runs without it"
        text = f"permission {action} is missing{optional}: {why}"
        self.found.append(Finding(what, status, text, action, is_missing=True))

    def call(
        self,
        service: str,
        operation: str,
        target: str,
        request: Mapping[str, Any],
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        """Calls a service.

        Raises:
            ServiceError: it refused.
        """
        calls = Calls(self.connection, service, defaultdict(lambda: _BACKOFF), self.retrier)
        return calls.call(operation, target, request, read)

    def attempt(  # noqa: PLR0913 - what a call is, and what its outcomes mean
        self,
        service: str,
        operation: str,
        target: str,
        request: Mapping[str, Any],
        *,
        read: Callable[[Mapping[str, Any]], T],
        action: str | None = None,
        show: Callable[[T], str] = lambda _answer: "allowed",
        if_denied: Status = "failed",
        fine: Mapping[str, str] | None = None,
    ) -> T | None:
        """Calls a service, and notes whether the caller may.

        Args:
            read: takes the answer; returns what `attempt` returns.
            action: the IAM action that the call needs; None: it is named as service and call.
            show: what the finding says of it.
            if_denied: the status where the call is not allowed.
            fine: error codes that only a permitted call gets, and what the finding says then.

        Returns:
            None if the call failed.
        """
        action = action or f"{service.removesuffix('streams')}:{operation}"
        what = f"{action} on {target}"
        if self.is_unreachable:
            self.add(what, "unknown", "not tried, since the endpoint does not answer", action)
            return None
        try:
            found = self.call(service, operation, target, request, read)
        except ServiceError as error:
            self._note(what, action, error, if_denied, fine or {})
            return None
        self.add(what, "ok", show(found), action)
        return found

    def attempt_reading(
        self, service: str, name: str, stream: Mapping[str, str], shards: Sequence[str], some_shard: str
    ) -> bool:
        """Reads one record; returns False if that cannot be tried, for want of an iterator.

        Args:
            stream: how a request names the stream.
            shards: of the stream; only the first is read.
            some_shard: a guess, if none is known. A caller who may not ask gets another error than that
                it does not exist.
        """
        shard = shards[0] if shards else some_shard
        iterator = self.attempt(
            service,
            "GetShardIterator",
            name,
            {**stream, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"},
            read=lambda answer: str(answer["ShardIterator"]),
            fine={} if shards else {"ResourceNotFoundException": "allowed"},
        )
        if iterator is None:
            return False
        arn = {key: value for key, value in stream.items() if key == "StreamARN"}
        request = {"ShardIterator": iterator, "Limit": 1, **arn}
        fine = {"TrimmedDataAccessException": "allowed"}  # the shard has expired since
        self.attempt(
            service, "GetRecords", name, request, read=lambda answer: len(answer["Records"]), fine=fine
        )
        return True

    def _note(
        self, what: str, action: str, error: ServiceError, if_denied: Status, fine: Mapping[str, str]
    ) -> None:
        if is_denied(error):
            self.add_missing(what, _named_action(error) or action, str(error), status=if_denied)
        elif error.code in fine:
            self.add(what, "ok", fine[error.code], action)
        elif error.throttling:
            self.add(what, "warning", f"allowed, and throttled just now: {error}", action)
        elif error.missing:
            region = f" ({self.connection.region})" if self.connection.region else ""
            text = f"it does not exist in this account and region{region}: {error}"
            self.found.append(Finding(what, "failed", text, action, is_absent=True))
        else:
            self.is_unreachable = is_unanswered(error)
            self.add(what, "failed", str(error), action)


def is_denied(error: ServiceError) -> bool:
    """Whether the caller lacks a permission."""
    return error.code in _DENIED


def _named_action(error: ServiceError) -> str | None:
    """The action that the service itself names: a read may also need a key."""
    if error.code == "KMSAccessDeniedException":
        return "kms:Decrypt"
    match = _ACTION.search(error.sentence)
    return match[1] if match else None
