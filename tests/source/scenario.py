"""Everything that may happen to a stream and a query, in any order."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st
from memory_log import SECOND, MemoryLog
from memory_subscriptions import MemoryAgent
from query import Query

from sluice.errors import ServiceError
from sluice.source.admission import Limits
from sluice.source.splits import SplitId
from sluice.source.stream_log import Record

LIMITS = st.sampled_from(
    [
        Limits(),
        Limits(),
        Limits(records=1),
        Limits(records=40),
        Limits(records=2000),
        Limits(bytes=500),
        Limits(span=2 * SECOND),
        Limits(records=300, bytes=2000, span=5 * SECOND),
    ]
)
STEP = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 300), st.sampled_from([0.0, 0.001, 0.1])),
    st.tuples(st.just("wait"), st.sampled_from([0.3, 1.0, 12.0, 400.0, 7200.0])),
    st.tuples(st.just("split"), st.integers(0, 100)),
    st.tuples(st.just("merge"), st.integers(0, 100)),
    st.tuples(st.just("batch"), LIMITS, st.booleans()),
    st.tuples(st.just("batch"), LIMITS, st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("available"), LIMITS),
)


class Scenario:
    """Puts, reshards, faults and batches in any order."""

    def __init__(
        self,
        seed: int,
        shards: int,
        page_limit: int,
        fault_rate: float,
        agent: Callable[[MemoryLog], MemoryAgent] | None = None,
        **pages: int,
    ) -> None:
        self.rng = random.Random(seed)
        self.fault_rate = fault_rate
        self.log = MemoryLog(**pages, fault=self.fault)
        self.log.create("s", shards)
        self.query = Query(self.log, ["s"], page_limit=page_limit, agent=agent(self.log) if agent else None)
        self.records: list[Record] = []

    def fault(self, operation: str, split: SplitId) -> Exception | None:
        if self.rng.random() >= self.fault_rate:
            return None
        if operation == "GetRecords" and self.rng.random() < 0.5:
            self.log.expire_iterators()
            return None
        return ServiceError(f"{operation} {split}", operation=operation, retryable=True, throttling=True)

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("put", int(count), float(pause)):
                for _ in range(count):
                    # Arrival is not guaranteed to rise with the sequence number.
                    arrival = self.log.now - self.rng.choice([0, 0, 0, 3_000])
                    self.records.append(self.log.put("s", str(self.rng.random()), arrival=arrival))
                    self.log.pass_time(pause)
            case ("wait", float(seconds)):
                self.log.pass_time(seconds)
            case ("split", int(index)):
                self.log.split(self.open[index % len(self.open)])
            case ("merge", int(index)) if len(self.open) > 1:
                index %= len(self.open) - 1
                self.log.merge(self.open[index], self.open[index + 1])
            case ("batch", Limits() as limits, bool(crash)):
                self.tolerantly(lambda: self.query.run_batch(limits, crash=crash))
            case ("restart",):
                self.query.restart()
            case ("available", Limits() as limits):
                self.query.enumerator.stop_at_available()
                for _ in range(3):
                    self.tolerantly(lambda: self.query.run_batch(limits))
                self.query.restart()

    @property
    def open(self) -> list[SplitId]:
        shards = [shard for shard in self.log.shards.values() if shard.ending_sequence is None]
        return [shard.id for shard in sorted(shards, key=lambda shard: shard.hash_range)]

    def tolerantly(self, run: object) -> None:
        """A batch whose reading fails is read again by Spark, from the same two offsets."""
        assert callable(run)
        logged = len(self.query.offsets)
        read = len(self.query.batches)
        try:
            run()
        except ServiceError as error:
            assert error.retryable  # noqa: PT017 - one of many ways this may go
            if len(self.query.offsets) > max(1, logged) and len(self.query.batches) == read:
                rate, self.fault_rate = self.fault_rate, 0.0
                self.query.batches.append(self.query.read(-1))
                self.fault_rate = rate
