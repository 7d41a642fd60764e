"""An agent that subscribes to shards of the strict model of the service, in one thread and by its clock.

As `polled_agent`, with the library's `Subscriber` in place of its `Poller`: subscriptions live for five
minutes, are renewed and refused as the service refuses them, and fall silent where a test says so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from integration.model import ModelLog
from integration.model.errors import ModelError
from integration.model.log import service_error
from integration.model.subscriptions import Subscription
from integration.model.wire import JsonCodec
from polled_agent import PolledAgent, WaitingError, without_waits

from sluice.aws.wire.watchdog import Watchdog
from sluice.errors import ServiceError
from sluice.kinesis.agent.poller import Poller
from sluice.kinesis.agent.shard_buffer import ShardBuffer
from sluice.kinesis.agent.subscription_manager import EventSource
from sluice.kinesis.subscriptions.subscriber import Subscriber, SubscriberSettings, Timing
from sluice.kinesis.subscriptions.subscription import CLOSED, OPERATION, SILENCE_LIMIT
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import Position
from sluice.source.model.splits import SplitId

_JSON = JsonCodec()
_SETTINGS = SubscriberSettings(Backoff(10, 1.0, 2.0, 1.5))


class _Thread:
    """The clock of the thread that reads a shard. While it waits for the service, its clock stands still.

    What it does next it has done since then: an agent steps once for all the time that has passed.
    """

    def __init__(self, log: ModelLog) -> None:
        self.log = log
        self.at = log.monotonic()
        self.watchdog = Watchdog(self.clock)
        self.watchdog._thread = threading.current_thread()  # so that it starts none

    def clock(self) -> float:
        return self.at

    def now(self) -> int:
        return self.log.now - round((self.log.monotonic() - self.at) * 1_000_000)

    def catch_up(self) -> None:
        """Something has come."""
        self.at = self.log.monotonic()

    def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.check_awake()

    def check_awake(self) -> None:
        if self.at > self.log.monotonic():
            raise WaitingError


class _Events:
    """The events of one subscription."""

    def __init__(self, subscription: Subscription, split: SplitId, thread: _Thread) -> None:
        self._subscription = subscription
        self._split = split
        self._thread = thread
        self._is_closed = False

    def next_payload(self) -> bytes | None:
        try:
            event = self._subscription.next_event()
        except ModelError as error:
            self._thread.catch_up()
            problem = service_error(error, OPERATION, str(self._split))
        else:
            if event is not None:
                self._thread.catch_up()
                payload: bytes = _JSON.encode(event)
                return payload
            waited = self._thread.log.monotonic() - self._thread.at
            if self._subscription.has_ended and not self._is_closed:
                self._thread.catch_up()
                return None
            if not self._is_closed and waited < SILENCE_LIMIT:
                raise WaitingError
            self._thread.catch_up()  # the watchdog has closed it
            problem = ServiceError("closed", operation=OPERATION, code=CLOSED)
        raise problem

    def close(self) -> None:
        self._is_closed = True
        self._subscription.close()


class SideBySideAgent(PolledAgent):
    """A `PolledAgent` whose shards do not wait for one another."""

    def __init__(self, log: ModelLog, *, pages: int = 100, seed: int = 0) -> None:
        self._threads: dict[SplitId, _Thread] = {}
        super().__init__(log, pages=pages, seed=seed)

    def read_on(self, positions: Mapping[SplitId, Position]) -> None:
        super().read_on({split: at for split, at in positions.items() if self._is_awake(split)})

    def _is_awake(self, split: SplitId) -> bool:
        thread = self._threads.get(split)
        return thread is None or thread.at <= self._log.monotonic()

    def _open_source(self, split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> EventSource:
        thread = self._threads[split] = _Thread(self._log)

        def clock() -> float:
            thread.catch_up()
            return thread.at

        timing = Timing(clock, thread.sleep, lambda: 0.5)
        return Poller(self._log, split, start, without_waits(buffer), self._settings, timing=timing)


class PushedAgent(SideBySideAgent):
    """An agent that subscribes. Stream ``s`` exists."""

    def __init__(self, log: ModelLog, *, pages: int = 100, seed: int = 0) -> None:
        summary = log.model.call("DescribeStreamSummary", {"StreamName": "s"})["StreamDescriptionSummary"]
        request = {"StreamARN": summary["StreamARN"], "ConsumerName": "c"}
        answer = log.model.call("RegisterStreamConsumer", request)
        self._consumer: str = answer["Consumer"]["ConsumerARN"]
        super().__init__(log, pages=pages, seed=seed)

    def _open_source(self, split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> EventSource:
        thread = self._threads[split] = _Thread(self._log)

        def subscribe(split: SplitId, start: IteratorStart) -> _Events:
            position: dict[str, object] = {"Type": start.kind}
            if start.sequence_number is not None:
                position["SequenceNumber"] = start.sequence_number
            if start.timestamp is not None:
                position["Timestamp"] = start.timestamp / 1_000_000
            request = {"ConsumerARN": self._consumer, "ShardId": split.shard, "StartingPosition": position}
            thread.catch_up()
            try:
                answer = self._log.model.call(OPERATION, request)
            except ModelError as error:
                problem = service_error(error, OPERATION, str(split))
            else:
                return _Events(answer["EventStream"], split, thread)
            raise problem

        timing = Timing(thread.clock, thread.sleep, lambda: 0.5, thread.watchdog, thread.now, thread.now)
        subscriber = Subscriber(subscribe, split, start, _SETTINGS, timing)
        subscriber.space = without_waits(buffer)
        return subscriber
