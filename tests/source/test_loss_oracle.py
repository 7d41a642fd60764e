"""Through any history of a stream and its query, each record is read once or reported as lost.

The strict model of the service knows what really became of each record.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from integration.model import Accepted, KinesisModel, Laws, ManualClock, ModelLog
from memory_subscriptions import ALL_FAULTS, MemoryAgent
from query import Query, at_horizon, at_latest, check_order
from scenario import LIMITS

from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.enumerator import InitialPositions
from sluice.source.settings import NO_LIMITS, Limits

HOUR = 3600
LONGEST_SAFE_STOP = 17.0
"""Hours. Records are kept for 24 at least, and the hints in the log may be a quarter of that old."""

RECREATED = "deleted and created again"

STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 40)),
    st.tuples(st.just("put"), st.integers(1, 40)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 3, 9, 20, 30, 70])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 3, 9, 20, 30, 70])),
    st.tuples(st.just("split"), st.integers(0, 100)),
    st.tuples(st.just("merge"), st.integers(0, 100)),
    st.tuples(st.just("retention"), st.sampled_from([24, 48, 168])),
    st.tuples(st.just("stop"), st.booleans()),
    st.tuples(st.just("start")),
    st.tuples(st.just("available")),
    st.tuples(st.just("recreate"), st.integers(1, 3)),
    st.tuples(st.just("hide"), st.integers(0, 100)),
)


class PatchyLog(ModelLog):
    """Some of its listings lack shards, among them such as show that others are missing."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model)
        self._hidden: set[SplitId] = set()
        self._listings = 0.0  # that lack them, at most
        self._until = 0.0  # when all are listed again (microseconds)

    def hide(self, number: int) -> None:
        """The next listings lack a closed shard and its children: up to three, or those of a minute."""
        closed = sorted(shard.id for shard in self.shards.values() if shard.ending_sequence is not None)
        if closed:
            parent = closed[number % len(closed)]
            children = (each.id for each in self.shards.values() if parent.shard in each.parents)
            self._hidden, self._listings, self._until = {parent, *children}, 1 + number % 4, math.inf
            if number % 4 == 3:
                self._listings, self._until = math.inf, self.now + 60_000_000

    def list_splits(self, stream: str) -> Sequence[Split]:
        listed = super().list_splits(stream)
        if self._listings == 0 or self.now >= self._until:
            return listed
        self._listings -= 1
        return [split for split in listed if split.id not in self._hidden]


class History:
    """A stream, and a query that is stopped and started.

    Attributes:
        began: when the query was started (microseconds).
        longest_stop: how long the query was stopped at most (hours).
        is_recreated: whether the stream is another one of the same name by now.
        deleted: the records of those before it.
        is_lowered: whether its retention was lowered while the query was stopped.
    """

    def __init__(
        self,
        seed: int,
        shards: int,
        initial: InitialPositions,
        *,
        is_pushed: bool = False,
        limits: Limits = NO_LIMITS,
        max_drift: int | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.model = KinesisModel(Laws(), ManualClock(), seed)
        self.log = PatchyLog(self.model)
        self.log.create("s", shards)
        self.log.pass_time(10)
        self.agent = MemoryAgent(self.log, faults=ALL_FAULTS, seed=seed) if is_pushed else None
        self.limits = limits
        self.query = Query(self.log, initial=initial, fail=False, agent=self.agent, max_drift=max_drift)
        self.began = self.log.now
        self.query.log_start()
        self.is_running = True
        self.longest_stop = self.stopped_for = 0.0
        self.is_recreated = self.is_lowered = False
        self.deleted: list[Accepted] = []

    def take(self, steps: Iterable[tuple[object, ...]]) -> None:
        for step in steps:
            match step:
                case ("wait", (int() | float()) as hours):
                    self.wait(float(hours))
                case ("stop", bool(in_mid_batch)):
                    self.stop(in_mid_batch=in_mid_batch)
                case ("start",):
                    self.start()
                case ("available",):
                    self.run_available()
                case (str(change), int(size)):
                    self.change_stream(change, size)
        self.start()
        self.query.run_to_end(self.limits, empty_triggers=8, step=12.0)

    def change_stream(self, change: str, size: int) -> None:
        """What producers and operators do."""
        match change:
            case "put":
                for _ in range(size):
                    self.log.put("s", str(self.rng.random()))
            case "split":
                self.log.split(self.open[size % len(self.open)])
            case "merge" if len(self.open) > 1:
                index = size % (len(self.open) - 1)
                self.log.merge(self.open[index], self.open[index + 1])
            case "retention":
                self.set_retention(size)
            case "recreate":
                self.recreate(size)
            case "hide":
                self.log.hide(size)

    def wait(self, hours: float) -> None:
        if not self.is_running:
            self.stopped_for += hours
            self.longest_stop = max(self.longest_stop, self.stopped_for)
            self.log.pass_time(hours * HOUR)
            return
        end = self.log.now + hours * HOUR * 1_000_000
        while self.log.now < end:
            self.query.run_while_new(self.limits)
            self.log.pass_time(min(HOUR, 1 + (end - self.log.now) / 1_000_000))

    def stop(self, *, in_mid_batch: bool) -> None:
        """The query is killed, perhaps with a batch logged that was not read."""
        if not self.is_running:
            return
        if in_mid_batch:
            end = self.query.plan(self.limits)
            if end.to_json() != self.query.offsets[-1]:
                self.query.log_end(end)
        self.is_running, self.stopped_for = False, 0.0

    def start(self) -> None:
        if self.is_running:
            return
        self.is_running, self.is_lowered = True, False
        self.query.restart()
        if len(self.query.offsets) - 1 > len(self.query.batches):
            self.query.batches.append(self.query.read(-1))

    def run_available(self) -> None:
        """A run of a query that is stopped otherwise."""
        self.start()
        self.stop(in_mid_batch=False)
        self.start()
        self.query.enumerator.stop_at_available()
        self.query.run_while_new(self.limits)
        self.stop(in_mid_batch=False)

    def set_retention(self, hours: int) -> None:
        """A retention that is lowered and raised again between two listings would go unseen."""
        now = self.log.describe("s").retention / HOUR
        if hours < now or (hours > now and not self.is_lowered):
            operation = "IncreaseStreamRetentionPeriod" if hours > now else "DecreaseStreamRetentionPeriod"
            self.model.call(operation, {"StreamName": "s", "RetentionPeriodHours": hours})
            self.log.pass_time(12)
            if self.is_running:
                self.query.run_batch(self.limits)
            else:
                self.is_lowered = hours < now

    def recreate(self, shards: int) -> None:
        """The stream is deleted, and one of the same name is created."""
        self.is_recreated = True
        self.deleted += self.model.oracle.records("s")
        self.log.delete("s")
        if self.agent is not None:
            self.agent.subscriptions.lose()
        self.log.pass_time(2)
        self.log.create("s", shards)

    def line_of(self, shard: str) -> set[str]:
        """A shard, its ancestors and its descendants."""
        parents = self.model.oracle.lineage("s")
        line = {shard}
        while more := {parent for child in line for parent in parents[child]} - line:
            line |= more
        descendants = {shard}
        while more := {child for child, of in parents.items() if descendants & set(of)} - descendants:
            descendants |= more
        return line | descendants

    @property
    def open(self) -> list[SplitId]:
        shards = [shard for shard in self.log.shards.values() if shard.ending_sequence is None]
        return [shard.id for shard in sorted(shards, key=lambda shard: shard.hash_range)]


class _Reports(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def capture_reports() -> Iterator[list[str]]:
    """The losses that are logged meanwhile."""
    reports, logger = _Reports(), logging.getLogger("sluice.source.logs.data_loss")
    logger.addHandler(reports)
    try:
        yield reports.texts
    finally:
        logger.removeHandler(reports)


PLAIN: dict[str, Any] = {
    "initial": at_horizon,
    "is_pushed": False,
    "limits": NO_LIMITS,
    "max_drift": None,
}


@example(  # hints were as old as the longer retention allows
    steps=[
        ("put", 21),
        ("retention", 168),
        ("put", 20),
        ("wait", 20),
        ("stop", False),
        ("put", 1),
        ("wait", 9),
        ("start",),
        ("retention", 24),
    ],
    seed=380558,
    shards=3,
    **PLAIN,
)
@example(  # a retention that was lowered went unlogged until the check that is made once a minute
    steps=[
        ("retention", 48),
        ("retention", 24),
        ("stop", False),
        ("put", 1),
        ("wait", 30),
        ("retention", 48),
    ],
    seed=0,
    shards=1,
    **PLAIN,
)
@example(  # a batch that was planned before a listing had shown that the stream is another one had no rows
    steps=[("recreate", 1), ("split", 0), ("put", 1)],
    seed=0,
    shards=3,
    **PLAIN,
)
@example(  # the shards of the old stream and those of the new one were all closed: the batch had no rows
    steps=[("merge", 0), ("wait", 0.1), ("recreate", 2), ("put", 1), ("split", 0), ("split", 92)],
    seed=0,
    shards=2,
    **PLAIN,
)
@example(  # the first listings of a run lacked a shard that could be read, for a minute
    steps=[("put", 9), ("wait", 0.1), ("put", 9), ("split", 0), ("put", 9), ("stop", False), ("hide", 3)],
    seed=0,
    shards=1,
    **PLAIN,
)
@example(  # children that no listing has for a minute are read after it, whenever the query lists again
    steps=[("split", 0), ("hide", 3), ("put", 1)],
    seed=0,
    shards=1,
    **PLAIN,
)
@given(
    steps=st.lists(STEP, min_size=1, max_size=14),
    seed=st.integers(0, 2**32),
    shards=st.integers(1, 3),
    initial=st.sampled_from([at_horizon, at_latest]),
    is_pushed=st.booleans(),
    limits=LIMITS,
    max_drift=st.sampled_from([None, 5_000_000]),
)
def test_each_record_is_read_once_or_reported_as_lost(
    steps: list[tuple[object, ...]],
    seed: int,
    shards: int,
    initial: InitialPositions,
    *,
    is_pushed: bool,
    limits: Limits,
    max_drift: int | None,
) -> None:
    """And nothing is reported where no stop came near to the shortest retention.

    A shard that opened and expired while the query was stopped may be known by its descendants alone. Losses
    of a deleted stream are reported with the stream, and records of the new one that were read before that
    are read again.
    """
    history = History(seed, shards, initial, is_pushed=is_pushed, limits=limits, max_drift=max_drift)
    with capture_reports() as reports:
        history.take(steps)
    numbers = history.query.numbers()
    read = set(numbers)
    if not history.is_recreated:
        assert len(numbers) == len(read)
        check_order(history.query)

    def is_unread(record: Accepted) -> bool:
        is_early = initial is at_latest and record.arrival < history.began
        return int(record.sequence_number) not in read and not is_early

    if any(map(is_unread, history.deleted)):
        assert any(RECREATED in report for report in reports)
    for record in history.model.oracle.records("s"):
        if is_unread(record):
            assert record.has_expired, record
            named = [shard for shard in history.line_of(record.shard) if any(shard in r for r in reports)]
            assert named, (record, reports)
    if history.longest_stop < LONGEST_SAFE_STOP and not history.is_recreated:
        assert not reports
