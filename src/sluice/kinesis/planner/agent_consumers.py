"""What an agent is told of the query's consumers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from sluice.kinesis.shared.protocol import ConsumersChanged

__all__ = ["AgentConsumers"]

_log: Final = logging.getLogger(__name__)


class AgentConsumers:
    """The consumers that the agent subscribes with, and those that it deregisters when the query is stopped.

    Not thread-safe, except `message`: the caller holds the lock of the `AgentClient`.

    Args:
        arns: stream's name to the ARN of its consumer, as far as that is known.
        send: sends a message to the agent, if one runs. Called when `message` has changed, except by
            `mark_contested`.

    Attributes:
        contested: ARNs of consumers that a reader which is not of this query uses.
    """

    def __init__(self, arns: Mapping[str, str], send: Callable[[ConsumersChanged], object]) -> None:
        self.contested: frozenset[str] = frozenset()
        self._arns = dict(arns)
        self._registered: frozenset[str] = frozenset()
        self._logged: frozenset[str] = frozenset()
        self._renewing: set[str] = set()
        self._send = send

    @property
    def message(self) -> ConsumersChanged:
        """What the agent has to know. Signal handlers read it."""
        # The agent learns of contested ones by itself, but the next agent does not.
        registered = tuple(sorted(self._registered - self.contested))
        return ConsumersChanged(dict(self._arns), registered, tuple(sorted(self._logged)))

    @property
    def streams(self) -> list[str]:
        """The streams whose consumers are known."""
        return list(self._arns)

    def set_arns(self, arns: Mapping[str, str]) -> None:
        """The agent subscribes with these: stream's name to ARN."""
        if arns != self._arns:
            self._arns = dict(arns)
            self._send(self.message)

    def set_registered(self, arns: frozenset[str], logged: frozenset[str]) -> None:
        """The query has registered these. Those that the offset log names stay after a crash."""
        if (arns, logged) != (self._registered, self._logged):
            self._registered, self._logged = arns, logged
            self._send(self.message)

    def is_news(self, arn: str) -> bool:
        """Whether the owner of a consumer that was taken over may not know that this query uses it.

        Only who loses a subscription learns of the other reader. So a query that does not own the consumer
        takes the first one that it loses back, or the owner would deregister the consumer when it is stopped.
        """
        return bool(arn) and arn not in self._registered and arn not in self.contested

    def mark_contested(self, stream: str, arn: str) -> None:
        """Another reader uses a consumer. The agent is not told: mostly it has said so."""
        self.contested |= {arn}
        _log.warning(
            "%s: another reader uses consumer %s, so it stays registered when this query is stopped, or "
            "somebody deletes it",
            stream,
            arn,
        )

    def begin_renewal(self, stream: str) -> bool:
        """Whether to register the stream's consumer again: False while that is being done already."""
        if stream in self._renewing:
            return False
        self._renewing.add(stream)
        return True

    def end_renewal(self, stream: str) -> None:
        """The consumer was registered again, or could not be."""
        self._renewing.discard(stream)

    def replace(self, stream: str, arn: str) -> bool:
        """The stream has this consumer now. Returns whether it had another one."""
        if arn == self._arns[stream]:
            return False
        self._arns[stream] = arn
        self._send(self.message)
        return True
