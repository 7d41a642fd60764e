"""What a subscriber does about each error of SubscribeToShard."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from sluice.errors import ServiceError

__all__ = ["Reaction", "reaction_to_call", "reaction_to_event"]


class Reaction(enum.Enum):
    """What to do about an error of the service."""

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
    """To an error of the call. For one that is not documented, `ServiceError.retryable` decides."""
    return _REACTIONS.get(error.code, Reaction.RETRY if error.retryable else Reaction.FAIL)


def reaction_to_event(error: ServiceError) -> Reaction:
    """To an error in the event stream. One that is not documented is retried: the service has taken the
    call before, and refuses the next one if the error does not pass.
    """
    return _REACTIONS.get(error.code, Reaction.RETRY)
