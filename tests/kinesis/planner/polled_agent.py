"""An agent that polls the strict model of the service, in one thread and by the model's clock.

Everything in it is the library's: the planner's end of the link, the agent's shards with their pollers and
buffers, and what a task makes of a page. Only sockets, processes and threads are missing: a message is a
call, and the agent reads when the planner asks it for news.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from integration.model import KinesisModel, ModelLog
from integration.model.log import NO_RETRIES
from integration.model.wire import CODECS

from sluice.channels.channel import Address
from sluice.errors import ServiceError
from sluice.kinesis.agent.poller import Poller, PollerSettings, Timing, read_encoded_page
from sluice.kinesis.agent.shard_buffer import RangeUnavailable, ShardBuffer
from sluice.kinesis.agent.subscription_manager import (
    EventSource,
    ManagerSettings,
    SubscriptionManager,
)
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_client import AgentClient
from sluice.kinesis.planner.near_tip import NearTip
from sluice.kinesis.shared.coverage import exclusive_start
from sluice.kinesis.shared.launch import AgentSetup
from sluice.kinesis.shared.protocol import (
    Acknowledge,
    FromAgent,
    RangesAsked,
    ReadRange,
    Server,
    Subscribe,
    SubscriptionEnded,
    ToAgent,
    Unsubscribe,
)
from sluice.kinesis.subscriptions.events import decode_page
from sluice.retry import Backoff
from sluice.source.logs.cursor import iterator_start
from sluice.source.logs.stream_log import IteratorStart, Page, Record
from sluice.source.model.offsets import After, Position, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.planning.enumerator import StreamEnumerator

CONFIG = source_config_from_options(
    {"streamName": "s", "region": "us-east-1", "agent": "driver"}, streaming=True
)
SETTINGS = PollerSettings(1_900, 0.2, Backoff(3, 0.3, 1.0, 1.5))


class ModelPages(ModelLog):
    """The model's pages as an agent gets them, in JSON and in CBOR by turns."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model, backoffs=NO_RETRIES)
        self._codecs = cycle(CODECS.values())

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        request = {"ShardIterator": iterator, "Limit": limit}
        answer = self._call("GetRecords", str(split), request)
        page = read_encoded_page(next(self._codecs).encode(answer), target=str(split))
        return replace(page, size=sum(len(record["Data"]) for record in answer["Records"]))


class WaitingError(BaseException):
    """A thread of the agent would wait."""


def without_waits(buffer: ShardBuffer) -> ShardBuffer:
    """A buffer that raises where its thread would wait for batches."""

    def wait_until_drained() -> None:
        if buffer._events:
            raise WaitingError

    buffer.wait_until_drained = wait_until_drained  # type: ignore[method-assign]
    return buffer


class SteppedManager(SubscriptionManager):
    """The shards of an agent; the test plays its threads."""

    def _start(self, subscription: Any) -> None:
        pass

    def step(self, split: SplitId) -> bool:
        """Waits for one page. Returns False where none would come."""
        subscription = self._subscriptions.get(split)
        if subscription is None or subscription.is_closed or subscription.buffer._has_ended:
            return False
        try:
            return self._receive_event(subscription)
        except WaitingError:
            return False


class _Link:
    """Stands where an `AgentSupervisor` does."""

    is_running = True

    def __init__(self, agent: PolledAgent) -> None:
        self._agent = agent

    @property
    def is_silent(self) -> bool:
        return self._agent.is_silent

    def start(self) -> None:
        pass

    def check(self) -> None:
        pass

    def send(self, message: ToAgent) -> None:
        self._agent.handle(message)

    def close(self) -> None:
        self._agent.manager.close()


@dataclass(frozen=True)
class AgentFaults:
    """The probability of each fault, whenever it can happen."""

    die: float = 0.0  # the agent is killed before a trigger, or while a task reads
    lag: float = 0.0  # a shard is not read before a trigger
    silence: float = 0.0  # nothing is heard of the agent for one trigger
    refuse: float = 0.0  # a task can't reach the agent


class _Subscriptions(NearTip):
    """Those of one enumerator. The agent reads once it knows where batches are."""

    def __init__(self, agent: PolledAgent, clock: Callable[[], float]) -> None:
        super().__init__(agent.client, self._expect_reads_of_agent, clock)
        self._reader = agent
        self.enumerator: StreamEnumerator | None = None

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        super().follow(positions)
        self._reader.read_on(positions)

    def _expect_reads_of_agent(self) -> None:
        assert self.enumerator is not None
        self.enumerator.expect_reads()


class _Publisher:
    """What a task reads from the agent; see `AgentRecordPublisher`."""

    is_gapless = True

    def __init__(self, agent: PolledAgent, split_range: SplitRange, position: Position) -> None:
        after, end = exclusive_start(position), split_range.end
        self.is_closed = False
        self._agent = agent
        self._payloads: Iterator[bytes | memoryview] | None = None
        self._request = ReadRange(
            split=split_range.split,
            start=iterator_start(position),
            after=None if after is None else str(after),
            end=end.number if isinstance(end, After) else None,
            max_wait=0.0,
        )

    def next_page(self) -> Page:
        assert not self.is_closed
        self._agent.may_die()
        try:
            if self._payloads is None:
                self._agent.client._handle_message(RangesAsked(1))
                self._payloads = self._agent.manager.read(self._request)
            payload = next(self._payloads, None)
        except RangeUnavailable as reason:
            raise ServiceError(str(reason), retryable=True) from None
        if payload is None:
            return Page((), None, 0)
        self._agent.served += 1
        page = decode_page(payload)
        records = [
            Record(each.sequence_number, each.arrival, each.partition_key, each.data) for each in page.records
        ]
        return Page(records, page.next_iterator, page.millis_behind)

    def close(self) -> None:
        self.is_closed = True


class PolledAgent:
    """An agent of one query.

    Args:
        log: of the query, for its model and its clock.
        pages: at most as many are read of a shard before a trigger.

    Attributes:
        served: pages that tasks got from it.
        ended: codes of the shards that it gave up.
    """

    def __init__(
        self,
        log: ModelLog,
        *,
        pages: int = 6,
        faults: AgentFaults = AgentFaults(),
        seed: int = 0,
        settings: PollerSettings = SETTINGS,
        buffer_bytes: int = 2**30,
    ) -> None:
        self.publishers: list[_Publisher] = []
        self.served = 0
        self.ended: Counter[str] = Counter()
        self.is_silent = False
        self._settings = settings
        self._buffer_bytes = buffer_bytes
        self._log = ModelPages(log.model)
        self._pages = pages
        self._faults = faults
        self._rng = random.Random(seed)
        self.new_subscriptions()

    def new_subscriptions(self) -> _Subscriptions:
        """For a new planner, which starts another agent."""
        self.manager = self._new_manager()
        assert CONFIG.agent is not None
        setup = AgentSetup.beside_driver(CONFIG)
        self.client = AgentClient(setup, clock=self._log.monotonic)
        self.client._supervisor = _Link(self)  # type: ignore[assignment]
        self.client._address = Address("127.0.0.1", 1, b"secret", b"start")
        self.subscriptions = _Subscriptions(self, self._log.monotonic)
        return self.subscriptions

    def attach(self, enumerator: StreamEnumerator) -> None:
        self.subscriptions.enumerator = enumerator

    def open_publisher(self, split_range: SplitRange, position: Position) -> _Publisher:
        if self._happens(self._faults.refuse) or not self.client.agents([split_range.split]):
            raise ServiceError("no agent has it", operation="GetRecords", retryable=True)
        self.publishers.append(_Publisher(self, split_range, position))
        return self.publishers[-1]

    def read_on(self, positions: Mapping[SplitId, Position]) -> None:
        """What the agent does between two triggers."""
        self.is_silent = self._happens(self._faults.silence)
        self.may_die()
        for split in positions:
            if not self._happens(self._faults.lag):
                for _ in range(self._pages):
                    if not self.manager.step(split):
                        break

    def may_die(self) -> None:
        """SIGKILL, perhaps: another agent takes its place, and knows nothing."""
        if self._happens(self._faults.die):
            self.manager.close()
            self.manager = self._new_manager()
            self.client._subscriptions.shards = {}

    def handle(self, message: ToAgent) -> None:
        match message:
            case Subscribe():
                self.manager.subscribe(message)
            case Acknowledge():
                self.manager.acknowledge(message.split, int(message.number))
            case Unsubscribe():
                self.manager.unsubscribe(message.split)

    def _new_manager(self) -> SteppedManager:
        return SteppedManager(
            self._open_source,
            self._report,
            ManagerSettings(self._buffer_bytes, 1, Server("127.0.0.1", 1, b"start", b"")),
            now=self._log.server_time,
            retention=lambda stream: self._log.describe(stream).retention,
        )

    def _open_source(self, split: SplitId, start: IteratorStart, buffer: ShardBuffer) -> EventSource:
        timing = Timing(self._log.monotonic, self._log.sleep, lambda: 0.5)
        return Poller(self._log, split, start, without_waits(buffer), self._settings, timing=timing)

    def _report(self, message: FromAgent) -> None:
        if isinstance(message, SubscriptionEnded):
            self.ended[message.code] += 1
        self.client._handle_message(message)

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self._rng.random() < rate
