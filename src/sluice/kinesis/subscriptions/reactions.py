"""A subscriber's reaction to each error of SubscribeToShard."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from sluice.errors import ServiceError

__all__ = ["Reaction", "reaction_to_call", "reaction_to_event"]


class Reaction(enum.Enum):
    """The reaction to an error of the service."""

    RETRY = enum.auto()
    IN_USE = enum.auto()
    """Of the call: it came too soon after another one. Of the event stream: another reader took over."""
    REFUSED = enum.auto()
    """Fail, unless there is another starting position to try."""
    FAIL = enum.auto()


# The errors in https://docs.aws.amazon.com/kinesis/latest/APIReference/API_SubscribeToShard.html and
# .../API_SubscribeToShardEventStream.html.
_REACTIONS: Final[Mapping[str, Reaction]] = {
    "AccessDeniedException": Reaction.FAIL,
    "InternalFailureException": Reaction.RETRY,
    "InvalidArgumentException": Reaction.REFUSED,
    "KMSAccessDeniedException": Reaction.FAIL,
    "KMSDisabledException": Reaction.FAIL,
    "KMSInvalidStateException": Reaction.FAIL,
    "KMSNotFoundException": Reaction.FAIL,
    "KMSOptInRequired": Reaction.FAIL,
    "KMSThrottlingException": Reaction.RETRY,
    "LimitExceededException": Reaction.RETRY,
    "ResourceInUseException": Reaction.IN_USE,
    "ResourceNotFoundException": Reaction.REFUSED,
}


def reaction_to_call(error: ServiceError) -> Reaction:
    """The reaction to an error of the call. For undocumented errors, `ServiceError.retryable` decides."""
    return _REACTIONS.get(error.code, Reaction.RETRY if error.retryable else Reaction.FAIL)


def reaction_to_event(error: ServiceError) -> Reaction:
    """The reaction to an error in the event stream. Undocumented errors are retried: the service has accepted
    the call before, and refuses the next one if the error persists.
    """
    return _REACTIONS.get(error.code, Reaction.RETRY)
