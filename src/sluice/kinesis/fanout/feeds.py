"""Feeds of a task: from the agent that holds the shard's subscription, or from a subscription of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluice.errors import ServiceError
from sluice.kinesis.fanout.channel import Address, Channel, connect
from sluice.kinesis.fanout.events import decode_page
from sluice.kinesis.fanout.messages import Fetch, encode, needed
from sluice.kinesis.fanout.opening import open_subscriber
from sluice.kinesis.fanout.server import DONE, EVENT
from sluice.kinesis.fanout.subscriber import Subscriber
from sluice.kinesis.options import SourceConfig
from sluice.source.cursor import iterator_start
from sluice.source.log import Page
from sluice.source.offsets import After, Position, SplitRange

__all__ = ["AgentFeed", "SubscriptionFeed", "is_reachable"]

_CONNECT_TIMEOUT: Final = 5.0
_SLACK: Final = 10.0
"""Seconds an agent may take beyond the patience it is asked for before it counts as hung."""
_UNREACHABLE: Final = 30.0
"""Seconds for which an agent that could not be reached is not tried again by this process."""

_unreachable: dict[Address, float] = {}


def is_reachable(address: Address, clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether an agent is worth asking: from another host it may be out of reach for good."""
    return _unreachable.get(address, 0.0) <= clock()


class AgentFeed:
    """Asks an agent for one range.

    Args:
        patience: seconds without news after which the agent says that it lacks the range.
    """

    vouches = True  # the agent serves what it has had without a gap from a verified start on

    def __init__(
        self, address: Address, split_range: SplitRange, position: Position, *, patience: float
    ) -> None:
        self._address = address
        self._target = str(split_range.split)
        self._channel: Channel | None = None
        need, end = needed(position), split_range.end
        fetch = Fetch(
            split=split_range.split,
            start=iterator_start(position),
            need=None if need is None else str(need),
            end=end.number if isinstance(end, After) else None,
            patience=patience,
        )
        try:
            self._channel = connect(address, timeout=_CONNECT_TIMEOUT)
        except (OSError, EOFError) as error:
            _unreachable[address] = time.monotonic() + _UNREACHABLE
            raise self._broken(error) from None
        try:
            self._channel.set_timeout(patience + _SLACK)
            self._channel.send(encode(fetch))
        except (OSError, EOFError) as error:
            self.close()
            raise self._broken(error) from None

    def next_page(self) -> Page:
        """See `sluice.source.log.Feed.next_page`."""
        if self._channel is None:
            raise self._broken("it was closed")
        try:
            frame = self._channel.receive()
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        kind, body = bytes(frame[:1]), frame[1:]
        if kind == EVENT:
            return decode_page(body, target=self._target)
        if kind == DONE:  # asked for on behind the range's end: only where that is the shard's
            return Page((), None, 0)
        raise self._broken(bytes(body).decode(errors="replace"))

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _broken(self, why: object) -> ServiceError:
        cause = str(why) or type(why).__name__
        return ServiceError(
            f"the fan-out agent at {self._address} does not give {self._target}: {cause}",
            operation="SubscribeToShard",
            target=self._target,
            retryable=True,
        )


class SubscriptionFeed:
    """Subscribes to a shard for one range. Only for splits that no agent holds: there is one owner."""

    vouches = False

    def __init__(
        self, config: SourceConfig, arn: Callable[[], str], split_range: SplitRange, position: Position
    ) -> None:
        self._target = str(split_range.split)
        self._subscriber: Subscriber = open_subscriber(
            config, arn, split_range.split, iterator_start(position)
        )

    def next_page(self) -> Page:
        """See `sluice.source.log.Feed.next_page`."""
        payload, _head = self._subscriber.next_event()
        return decode_page(payload, target=self._target)

    def close(self) -> None:
        self._subscriber.close()
