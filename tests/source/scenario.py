"""Random steps of a stream and a query: records, reshards, batches, faults and restarts in any order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from failing_reads import FailingReads
from hypothesis import strategies as st
from integration.model import FaultPlan, KinesisModel, Laws, ManualClock, ModelLog
from memory_log import SECOND
from query import Agent, Query, check_exactly_once

from sluice.source.logs.stream_log import Record
from sluice.source.model.splits import SplitId
from sluice.source.settings import Limits

LAWS = Laws(retention=False, shards_expire=False)
"""Nothing expires: other tests cover losses."""

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
VERSIONS = st.sampled_from([(1,), (2,), (1, 2)])
"""Of offsets: more splits than a history has would be logged as version 2, and fewer again as version 1."""
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


class Scenario(FailingReads):
    """Takes steps, and checks what the query has read from the strict model of the service.

    Args:
        shards: how many the stream has at first.
        fault_rate: the probability (0 to 1) that a call fails with throttling or an expired iterator.
        agent: makes the query's agent. None: everything is polled.
        laws: of the service.
        versions: of the offsets that are logged, in turn; None: by the number of splits.
    """

    THROTTLED = "ProvisionedThroughputExceededException"

    def __init__(
        self,
        seed: int,
        shards: int,
        fault_rate: float,
        *,
        laws: Laws = LAWS,
        page_limit: int = 10_000,
        agent: Callable[[ModelLog], Agent] | None = None,
        versions: Sequence[int | None] = (None,),
    ) -> None:
        self.rng = random.Random(seed)
        self.fault_rate = fault_rate
        faults = FaultPlan(callback=self.fault)
        self.log = ModelLog(KinesisModel(laws, ManualClock(), seed, faults=faults))
        self.log.create("s", shards)
        self.query = Query(
            self.log, page_limit=page_limit, agent=agent(self.log) if agent else None, versions=versions
        )
        self.records: list[Record] = []

    def run(self, steps: Iterable[tuple[object, ...]], *, empty_triggers: int) -> None:
        """Takes all steps, reads without faults until nothing is new, and checks every batch.

        Each batch has the same rows if it is read again from the log alone, by polling too.
        """
        for step in steps:
            self.step(step)
        self.fault_rate = 0.0
        self.log.pass_time(20)
        self.query.run_to_end(empty_triggers=empty_triggers, step=12.0)
        check_exactly_once(self.query, self.records)
        for number, rows in enumerate(self.query.batches):
            assert self.query.read(number) == rows
            if self.query.agent is not None:
                assert self.query.read(number, by_polling=True) == rows

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("put", int(count), float(pause)):
                for _ in range(count):
                    # Arrival times are in milliseconds, and need not rise with sequence numbers.
                    arrival = self.log.now // 1000 * 1000 - self.rng.choice([0, 0, 0, 3_000])
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
                self.run_batch(limits, crash=crash)
            case ("restart",):
                self.query.restart()
            case ("available", Limits() as limits):
                self.run_available(limits)

    def run_available(self, limits: Limits) -> None:
        """Runs some batches up to the tip of now. If the run ends with them, all of it was read."""
        there = {int(record.sequence_number) for record in self.records}
        self.query.restart()
        self.query.enumerator.stop_at_available()
        if not all(self.run_batch(limits) is not False for _ in range(3)):
            assert there <= set(self.query.numbers())
        self.query.restart()

    @property
    def open(self) -> list[SplitId]:
        """The open shards, by hash key."""
        shards = [shard for shard in self.log.shards.values() if shard.ending_sequence is None]
        return [shard.id for shard in sorted(shards, key=lambda shard: shard.hash_range)]
