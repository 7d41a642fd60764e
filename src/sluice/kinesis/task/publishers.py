"""Record publishers of a task: one reads from an agent, the other subscribes itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sluice.channels.channel import Address, Channel
from sluice.errors import ServiceError
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.shared.coverage import exclusive_start
from sluice.kinesis.shared.link import SILENT_AFTER
from sluice.kinesis.shared.protocol import DONE, EVENT, TAKEN_OVER, ReadRange, encode
from sluice.kinesis.subscriptions.event_stream import MAX_PAYLOAD
from sluice.kinesis.subscriptions.events import decode_page
from sluice.kinesis.subscriptions.subscriber import Subscriber, open_subscriber
from sluice.kinesis.task.connection_pool import SHARED_POOL, ConnectionPool
from sluice.source.logs.cursor import iterator_start
from sluice.source.logs.stream_log import Page
from sluice.source.model.offsets import After, Position, SplitRange

__all__ = ["AgentRecordPublisher", "SubscriptionRecordPublisher", "is_reachable"]

_DONE_TIMEOUT: Final = 1.0
"""Seconds to wait for `DONE`, which an agent sends right behind a range's last event."""
_UNREACHABLE_FOR: Final = 30.0
"""Seconds for which this process avoids an agent that it did not reach, or that hung. It asks sooner if the
planner has heard from an agent again after a silence (`FanOutAssignment.recoveries`).
"""

_LONGEST_ANSWER: Final = MAX_PAYLOAD + 1
"""Bytes of the largest frame: the byte of its kind, and an event."""
_CLOSED: Final = (EOFError, ConnectionResetError, BrokenPipeError)
"""The exceptions of a connection that the other end has closed."""

_unreachable_until: dict[tuple[Address, int], float] = {}


def is_reachable(address: Address, recoveries: int = 0, clock: Callable[[], float] = time.monotonic) -> bool:
    """Whether to ask an agent: not if a moment ago it could not be reached, or did not answer. A task may
    read many ranges from an agent, one after the other, but waits for a silent one only once.

    Args:
        recoveries: as that of `FanOutAssignment`.
    """
    return _unreachable_until.get((address, recoveries), 0.0) <= clock()


class AgentRecordPublisher:
    """Reads one range from an agent.

    Args:
        address: the agent that subscribes to the range's shard.
        position: where to continue reading: the start of the range, or behind it.
        max_wait: seconds without an event after which the agent reports that it can't serve the range.
        recoveries: as that of `FanOutAssignment`.
        pool: lends the connection, and gets it back if the agent has sent its whole answer.

    Raises:
        ServiceError: the agent can't be reached.
    """

    is_gapless = True  # an agent serves a range only if its subscription covers the start

    def __init__(  # noqa: PLR0913 - where, what, for how long
        self,
        address: Address,
        split_range: SplitRange,
        position: Position,
        *,
        max_wait: float,
        recoveries: int = 0,
        pool: ConnectionPool = SHARED_POOL,
    ) -> None:
        self._pool = pool
        self._address = address
        self._recoveries = recoveries
        self._target = str(split_range.split)
        self._channel: Channel | None = None
        after, end = exclusive_start(position), split_range.end
        self._end = end.sequence if isinstance(end, After) else None
        self._has_last_event = False  # nothing but `DONE` is left of the answer
        self._timeout = max_wait + SILENT_AFTER
        self._request = encode(
            ReadRange(
                split=split_range.split,
                start=iterator_start(position),
                after=None if after is None else str(after),
                end=end.number if isinstance(end, After) else None,
                max_wait=max_wait,
            )
        )
        self._may_ask_again = True  # nothing has been received yet
        try:
            self._ask()
        except _CLOSED:
            self._ask_again()
        except OSError as error:
            self.close()
            raise self._error(error) from None

    def next_page(self) -> Page:
        """See `sluice.source.reading.publisher.RecordPublisher.next_page`."""
        channel = self._channel
        if channel is None:
            raise self._error("the publisher was closed")
        try:
            frame = channel.receive(at_most=_LONGEST_ANSWER)
        except _CLOSED as error:
            if not self._may_ask_again:
                raise self._error(error) from None
            self._ask_again()
            return self.next_page()
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._mark_unreachable()
            raise self._error(error) from None
        self._may_ask_again = False
        kind, body = bytes(frame[:1]), frame[1:]
        if kind == EVENT:
            page = decode_page(body, target=self._target)
            if self._end is not None and page.records:
                self._has_last_event = int(page.records[-1].sequence_number) >= self._end
            return page
        self._return(channel)
        if kind == DONE:  # a page after the last event is requested only if the range ends with the shard
            return Page((), None, 0)
        reason = bytes(body).decode(errors="replace")  # first, as mostly it is an error of the service
        raise self._failed(f"{reason} (the agent at {self._address} can't serve {self._target})")

    def close(self) -> None:
        """Gives the connection back, or closes it if a part of the answer may still come."""
        channel = self._channel
        if channel is None:
            return
        if self._has_last_event and _receives_done(channel):
            self._return(channel)
        else:
            self._channel = None
            channel.close()

    def _ask(self, *, is_again: bool = False) -> None:
        try:
            channel = self._pool.acquire(self._address, timeout=SILENT_AFTER, is_new=is_again)
        except (OSError, EOFError) as error:
            self._mark_unreachable()
            raise self._error(error) from None
        self._channel = channel
        channel.set_timeout(self._timeout)
        channel.send(self._request)

    def _ask_again(self) -> None:
        """Asks once more, because the agent closed the idle connection before it answered."""
        self._may_ask_again = False
        self.close()
        try:
            self._ask(is_again=True)
        except (OSError, EOFError) as error:
            self.close()
            raise self._error(error) from None

    def _mark_unreachable(self) -> None:
        _unreachable_until[self._address, self._recoveries] = time.monotonic() + _UNREACHABLE_FOR

    def _return(self, channel: Channel) -> None:
        self._channel = None
        self._pool.release(self._address, channel)

    def _error(self, why: object) -> ServiceError:
        cause = str(why) or type(why).__name__
        return self._failed(f"the agent at {self._address} can't serve {self._target}: {cause}")

    def _failed(self, message: str) -> ServiceError:
        return ServiceError(message, operation="SubscribeToShard", target=self._target, retryable=True)


def _receives_done(channel: Channel) -> bool:
    try:
        channel.set_timeout(_DONE_TIMEOUT)
        return bytes(channel.receive()[:1]) == DONE
    except (OSError, EOFError):
        return False


class SubscriptionRecordPublisher:
    """Subscribes to a shard to read one range.

    Only for shards that no agent subscribes to: a consumer has one subscription to a shard.

    Args:
        arn: of the consumer.
        position: where to continue reading: the start of the range, or behind it.
        on_taken_over: called if another reader subscribes with the consumer meanwhile.
    """

    is_gapless = False

    def __init__(
        self,
        config: SourceConfig,
        arn: str,
        split_range: SplitRange,
        position: Position,
        *,
        on_taken_over: Callable[[], object],
    ) -> None:
        self._target = str(split_range.split)
        self._on_taken_over = on_taken_over
        self._subscriber: Subscriber = open_subscriber(
            config, lambda: arn, split_range.split, iterator_start(position)
        )

    def next_page(self) -> Page:
        """See `sluice.source.reading.publisher.RecordPublisher.next_page`."""
        try:
            payload, _head = self._subscriber.next_event()
        except ServiceError as error:
            if error.code == TAKEN_OVER:
                self._on_taken_over()
            raise
        return decode_page(payload, target=self._target)

    def close(self) -> None:
        """Ends the subscription."""
        self._subscriber.close()
