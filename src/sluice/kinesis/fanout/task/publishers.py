"""Feeds of a task: from the agent that holds the shard's subscription, or from a subscription of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluice.errors import ServiceError
from sluice.kinesis.fanout.channel import Address, Channel
from sluice.kinesis.fanout.coverage import needed
from sluice.kinesis.fanout.protocol import DONE, EVENT, ReadRange, encode
from sluice.kinesis.fanout.subscriptions.events import decode_page
from sluice.kinesis.fanout.subscriptions.subscriber import Subscriber, open_subscriber
from sluice.kinesis.fanout.task.connection_pool import Connections, shared_connections
from sluice.kinesis.options import SourceConfig
from sluice.source.cursor import iterator_start
from sluice.source.offsets import After, Position, SplitRange
from sluice.source.stream_log import Page

__all__ = ["AgentRecordPublisher", "SubscriptionRecordPublisher", "is_reachable"]

_CONNECT_TIMEOUT: Final = 5.0
_SLACK: Final = 10.0
"""Seconds an agent may take beyond the patience it is asked for before it counts as hung."""
_DONE_TIMEOUT: Final = 1.0
"""Seconds for the agent's last word on a range, which it says right behind the last event."""
_UNREACHABLE: Final = 30.0
"""Seconds for which an agent that could not be reached is not tried again by this process."""

_unreachable: dict[Address, float] = {}


def is_reachable(address: Address, clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether an agent is worth asking: from another host it may be out of reach for good."""
    return _unreachable.get(address, 0.0) <= clock()


class AgentRecordPublisher:
    """Asks an agent for one range.

    Args:
        patience: seconds without news after which the agent says that it lacks the range.
        connections: where one is taken from, and goes back to when the agent has said all.
    """

    is_gapless = True  # the agent serves what it has had without a gap from a verified start on

    def __init__(
        self,
        address: Address,
        split_range: SplitRange,
        position: Position,
        *,
        patience: float,
        connections: Connections | None = None,
    ) -> None:
        self._connections = connections or shared_connections()
        self._address = address
        self._target = str(split_range.split)
        self._channel: Channel | None = None
        self._end = split_range.end.sequence if isinstance(split_range.end, After) else None
        self._is_done = False  # only one word of the agent is left, or none
        need, end = needed(position), split_range.end
        fetch = ReadRange(
            split=split_range.split,
            start=iterator_start(position),
            need=None if need is None else str(need),
            end=end.number if isinstance(end, After) else None,
            patience=patience,
        )
        try:
            self._channel = self._connections.take(address, timeout=_CONNECT_TIMEOUT)
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
        """See `sluice.source.stream_log.RecordPublisher.next_page`."""
        channel = self._channel
        if channel is None:
            raise self._broken("it was closed")
        try:
            frame = channel.receive()
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        kind, body = bytes(frame[:1]), frame[1:]
        if kind == EVENT:
            page = decode_page(body, target=self._target)
            if self._end is not None and page.records:
                self._is_done = int(page.records[-1].sequence_number) >= self._end
            return page
        if kind == DONE:  # asked for on behind the range's end: only where that is the shard's
            self._let_go(channel)
            return Page((), None, 0)
        self._let_go(channel)
        raise self._broken(bytes(body).decode(errors="replace"))

    def close(self) -> None:
        channel = self._channel
        if channel is not None:
            self._let_go(channel, is_over=self._is_done and _says_done(channel))

    def _let_go(self, channel: Channel, *, is_over: bool = True) -> None:
        self._channel = None
        if is_over:
            self._connections.keep(self._address, channel)
        else:
            channel.close()

    def _broken(self, why: object) -> ServiceError:
        cause = str(why) or type(why).__name__
        return ServiceError(
            f"the fan-out agent at {self._address} does not give {self._target}: {cause}",
            operation="SubscribeToShard",
            target=self._target,
            retryable=True,
        )


def _says_done(channel: Channel) -> bool:
    """Takes the word that follows the last event at once."""
    try:
        channel.set_timeout(_DONE_TIMEOUT)
        return bytes(channel.receive()[:1]) == DONE
    except (OSError, EOFError):
        return False


class SubscriptionRecordPublisher:
    """Subscribes to a shard for one range. Only for splits that no agent holds: there is one owner."""

    is_gapless = False

    def __init__(
        self, config: SourceConfig, arn: Callable[[], str], split_range: SplitRange, position: Position
    ) -> None:
        self._target = str(split_range.split)
        self._subscriber: Subscriber = open_subscriber(
            config, arn, split_range.split, iterator_start(position)
        )

    def next_page(self) -> Page:
        """See `sluice.source.stream_log.RecordPublisher.next_page`."""
        payload, _head = self._subscriber.next_event()
        return decode_page(payload, target=self._target)

    def close(self) -> None:
        self._subscriber.close()
