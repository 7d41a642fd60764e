"""A fan-out agent over a `MemoryLog`, with faults on demand.

It gives the planner its subscriptions, and tasks their publishers. Subscriptions say of a shard what those of
the real agent say: `tests/kinesis/planner/test_idle_events.py` holds both to it.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from memory_log import SECOND, AnyLog

from sluice.errors import ServiceError
from sluice.source.logs.cursor import iterator_start
from sluice.source.logs.stream_log import Page, Record
from sluice.source.model.offsets import After, Position, SplitRange
from sluice.source.model.splits import SplitId
from sluice.source.planning.enumerator import StreamEnumerator
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress


@dataclass(frozen=True)
class Faults:
    """The probability of each fault, whenever it can happen."""

    lose: float = 0.0  # a subscription ends between two triggers
    lag: float = 0.0  # nothing is pushed before a trigger
    rewind: float = 0.0  # a subscription starts before the position that was asked for
    refuse: float = 0.0  # a publisher cannot be opened
    break_off: float = 0.0  # a publisher fails
    skip: float = 0.0  # a publisher starts behind the position that was asked for
    overlap: float = 0.0  # a publisher gives a page again
    caught_up: float = 0.0  # a publisher gives an empty page that says it is at the tip


HEARTBEAT = 5 * SECOND
"""An event comes this often where there are no records (microseconds)."""
LIFE = 270 * SECOND
"""A subscription is replaced at this age; the next one begins with an event."""
SILENT_AFTER = 10 * SECOND
"""After this long without an event, a subscription is not believed to have nothing new."""

NO_FAULTS = Faults()
ALL_FAULTS = Faults(
    lose=0.2, lag=0.3, rewind=0.3, refuse=0.1, break_off=0.1, skip=0.1, overlap=0.2, caught_up=0.2
)


@dataclass
class Subscription:
    """One subscription and what it has brought.

    Attributes:
        start: the position that was asked for.
        at: records before this sequence number are not pushed any more.
        events: the records of each event that is still buffered.
        is_pushing: an event has come.
        first: the sequence number of the first record that was pushed.
        freed: records up to this sequence number are not buffered any more.
        opened_at: when the service was asked for the current one, which lives for `LIFE` (microseconds).
        heard_at: when the last event came.
        is_silent: nothing comes any more.
    """

    start: Position
    at: int
    events: list[list[Record]] = field(default_factory=list)
    is_pushing: bool = False
    is_at_tip: bool = False
    has_ended: bool = False
    caught_up_at: int | None = None
    first: int | None = None
    freed: int = -1
    opened_at: int = 0
    heard_at: int = 0
    is_silent: bool = False


def first_number(log: AnyLog, split: SplitId, position: Position) -> int:
    """The least sequence number that a service gives when it is asked for `position`."""
    start = iterator_start(position)
    if start.sequence_number is not None:
        return int(start.sequence_number)
    records = log.records(split)
    if start.timestamp is not None:
        late = (int(r.sequence_number) for r in records if r.arrival >= (start.timestamp or 0))
        return next(late, int(records[-1].sequence_number) + 1 if records else 0)
    return 0


def behind_number(records: list[Record], at: int) -> list[Record]:
    """The records with this sequence number or a greater one."""
    return records[bisect_left(records, at, key=lambda record: int(record.sequence_number)) :]


class MemorySubscriptions:
    """`Subscriptions` in memory.

    Args:
        event_size: an event holds at most this many records.
        events: at most this many events come between two triggers.

    Attributes:
        followed: the argument of every `follow`.
        is_down: nothing is pushed, and no subscription covers anything.
        silent_until: nothing is heard of the subscriptions that there are, by the log's monotonic clock.
    """

    def __init__(
        self,
        log: AnyLog,
        *,
        event_size: int = 50,
        events: int = 1_000,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
    ) -> None:
        self.log = log
        self.event_size = event_size
        self.events = events
        self.faults = faults
        self.rng = random.Random(seed)
        self.subscriptions: dict[SplitId, Subscription] = {}
        self.followed: list[Mapping[SplitId, Position]] = []
        self.is_down = False
        self.silent_until = -1.0
        self.is_closed = False

    # --- Subscriptions ---

    @property
    def version(self) -> int:
        """Rises with records and ends, which `follow` then pushes."""
        shards = [self.log.shards[split] for split in self.subscriptions if split in self.log.shards]
        return sum(len(self.log.records(each.id)) + (each.ending_sequence is not None) for each in shards)

    def follow(self, positions: Mapping[SplitId, Position]) -> None:
        self.followed.append(dict(positions))
        if self.is_down:
            return
        self.subscriptions = {s: sub for s, sub in self.subscriptions.items() if s in positions}
        for split, position in positions.items():
            subscription = self.subscriptions.get(split)
            if self._happens(self.faults.lose) or not (subscription and self._covers(subscription, position)):
                self._subscribe(split, position)
                continue
            self._free(subscription, position)
            if not self._happens(self.faults.lag):
                for _ in range(self.events):
                    self._push(split, subscription)
                    if subscription.is_at_tip:
                        break

    def progress(self, split: SplitId, position: Position) -> SubscriptionProgress | None:
        subscription = self.subscriptions.get(split)
        if self.is_down or self.is_silent or subscription is None or not self._covers(subscription, position):
            return None
        if not subscription.is_pushing:
            return None  # no event has come yet
        done = position.sequence if isinstance(position, After) else -1
        events = [event for event in subscription.events if int(event[-1].sequence_number) > done]
        is_quiet = self.log.now - subscription.heard_at >= SILENT_AFTER and not subscription.has_ended
        if not events and is_quiet:
            return None
        return SubscriptionProgress(
            [cut_point(event) for event in events],
            0 if subscription.is_at_tip else 1000,
            subscription.has_ended,
            subscription.caught_up_at,
        )

    def close(self) -> None:
        self.is_closed = True
        self.lose()

    # --- faults ---

    def lose(self) -> None:
        """The agent is killed; another one starts at once, without subscriptions."""
        self.subscriptions = {}

    # --- inside ---

    @property
    def is_silent(self) -> bool:
        return self.log.monotonic() < self.silent_until

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    def _subscribe(self, split: SplitId, position: Position) -> None:
        self.subscriptions.pop(split, None)
        if split not in self.log.shards:
            return
        start = position
        records = self.log.records(split)
        if isinstance(position, After) and records and self._happens(self.faults.rewind):
            older = self.rng.choice(records)
            if int(older.sequence_number) <= position.sequence:
                start = After(older.sequence_number)
        number, now = first_number(self.log, split, start), self.log.now
        self.subscriptions[split] = Subscription(start, number, opened_at=now, heard_at=now)

    def _covers(self, subscription: Subscription, position: Position) -> bool:
        start = subscription.start
        if isinstance(start, After) and subscription.first not in (None, int(start.position_record)):
            return False  # records before the first pushed one have expired
        if not isinstance(position, After):
            return position == start and subscription.freed < 0
        if isinstance(start, After):
            is_behind = position.sequence >= start.sequence
        else:
            is_behind = subscription.first is not None and position.sequence >= subscription.first
        return is_behind and position.sequence >= subscription.freed

    def _free(self, subscription: Subscription, position: Position) -> None:
        done = position.sequence if isinstance(position, After) else -1
        while subscription.events and int(subscription.events[0][-1].sequence_number) <= done:
            subscription.freed = int(subscription.events.pop(0)[-1].sequence_number)

    def _push(self, split: SplitId, subscription: Subscription) -> None:
        shard = self.log.shards.get(split)
        if shard is None or subscription.has_ended or subscription.is_silent:
            return
        behind = behind_number(self.log.records(split), subscription.at)
        if not behind and isinstance(subscription.start, After) and subscription.first is None:
            return  # no record shows yet that none is missing behind the start
        event = behind[: self.rng.randint(1, self.event_size)]
        stated_at = event[-1].arrival if event else 0
        if not behind:
            stated_at = self._hear_idle_events(subscription)
        stated_at = max(stated_at, subscription.opened_at, subscription.caught_up_at or 0)
        subscription.is_pushing = True
        if event:
            subscription.heard_at = max(subscription.heard_at, event[-1].arrival)
            last = int(event[-1].sequence_number)
            if subscription.first is None:
                subscription.first = int(event[0].sequence_number)
            subscription.at = last + 1
            start = subscription.start
            if not isinstance(start, After) or last > start.sequence:
                subscription.events.append(event)
        subscription.is_at_tip = len(event) == len(behind)
        if subscription.is_at_tip:
            subscription.caught_up_at = stated_at
            subscription.has_ended = shard.ending_sequence is not None

    def _hear_idle_events(self, subscription: Subscription) -> int:
        """Those that have come since the last event. Returns when the wait for the last of them began."""
        waited_since = 0
        while True:
            renewed_at = subscription.opened_at + LIFE
            heard_at = min(subscription.heard_at + HEARTBEAT, renewed_at)
            if heard_at > self.log.now:
                return waited_since
            waited_since = subscription.heard_at
            if heard_at == renewed_at:
                subscription.opened_at = waited_since = renewed_at
            subscription.heard_at = heard_at


def cut_point(event: list[Record]) -> CutPoint:
    """The cut point behind an event."""
    size = sum(len(r.data) + len(r.partition_key) for r in event)
    last = event[-1]
    return CutPoint(last.sequence_number, last.arrival, size, len(event), min(r.arrival for r in event))


class MemoryPublisher:
    """A `RecordPublisher` of the records that the log holds behind a position."""

    is_gapless = False

    def __init__(
        self,
        log: AnyLog,
        split: SplitId,
        position: Position,
        *,
        event_size: int = 50,
        faults: Faults = NO_FAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self.log = log
        self.split = split
        self.event_size = event_size
        self.faults = faults
        self.rng = rng or random.Random(0)
        self.is_closed = False
        self.pages = 0
        self._at = first_number(log, split, position)
        self._last: list[Record] = []
        # Where no record is known to come first, nobody could notice that the publisher skips one.
        if isinstance(position, After) and self._happens(faults.skip):
            self._at = int(position.position_record) + 1

    def next_page(self) -> Page:
        assert not self.is_closed
        self.pages += 1
        if self._happens(self.faults.break_off):
            raise ServiceError(f"{self.split} broke off", operation="SubscribeToShard", retryable=True)
        if self._happens(self.faults.caught_up):
            return Page((), "on", 0)
        if self._last and self._happens(self.faults.overlap):
            return Page(self._last, "on", 0)
        shard = self.log.shards[self.split]
        behind = behind_number(self.log.records(self.split), self._at)
        event = behind[: self.rng.randint(1, self.event_size)]
        if event:
            self._at = int(event[-1].sequence_number) + 1
            self._last = event
        has_ended = len(event) == len(behind) and shard.ending_sequence is not None
        return Page(event, None if has_ended else "on", 0)

    def close(self) -> None:
        self.is_closed = True

    def _happens(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate


class MemoryAgent:
    """Subscriptions for the planner and publishers for tasks, over one log.

    Args:
        event_size: an event, or a page of a publisher, holds at most this many records.
        events: at most this many events come between two triggers.

    Attributes:
        publishers: all publishers that were opened.
        opened: the arguments of every `open_publisher`.
    """

    def __init__(
        self,
        log: AnyLog,
        *,
        event_size: int = 50,
        events: int = 1_000,
        faults: Faults = NO_FAULTS,
        seed: int = 0,
    ) -> None:
        self.log = log
        self.event_size = event_size
        self.events = events
        self.faults = faults
        self.rng = random.Random(seed)
        self.subscriptions = self.new_subscriptions()
        self.publishers: list[MemoryPublisher] = []
        self.opened: list[tuple[SplitRange, Position]] = []

    def new_subscriptions(self) -> MemorySubscriptions:
        """Subscriptions for a new enumerator. None is open."""
        self.subscriptions = MemorySubscriptions(
            self.log,
            event_size=self.event_size,
            events=self.events,
            faults=self.faults,
            seed=self.rng.randrange(1_000_000),
        )
        return self.subscriptions

    def attach(self, enumerator: StreamEnumerator) -> None:
        """A planner has got the last `new_subscriptions`."""

    def open_publisher(self, split_range: SplitRange, position: Position) -> MemoryPublisher:
        self.opened.append((split_range, position))
        if self.rng.random() < self.faults.refuse:
            raise ServiceError("no agent", operation="SubscribeToShard", retryable=True)
        if split_range.split not in self.log.shards:
            raise ServiceError("no such shard", operation="SubscribeToShard", missing=True)
        publisher = MemoryPublisher(
            self.log,
            split_range.split,
            position,
            event_size=self.event_size,
            faults=self.faults,
            rng=self.rng,
        )
        self.publishers.append(publisher)
        return publisher


__all__ = ["ALL_FAULTS", "NO_FAULTS", "Faults", "MemoryAgent", "MemoryPublisher", "MemorySubscriptions"]
