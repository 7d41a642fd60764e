"""How soon rows come that are polled near the tip, and how often that reads a shard: in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest
from memory_log import new_log
from query import Query
from steady_log import SECOND, Backlog, SteadyLog, new_enumerator

from sluice.source.log_source import LogSource
from sluice.source.model.offsets import After, Offsets
from sluice.source.model.splits import SplitId
from sluice.source.settings import NO_LIMITS, Limits
from sluice.testing.memory_source import MemorySource

SECONDS_PER_READ = 0.8
MEASURED = 12.0
BATCH = 0.25  # seconds that Spark takes for a batch, from its plan to its rows
CALL = 0.01  # seconds from one call of Spark to the next if nothing is new


class NearTip:
    """A query that Spark runs without a pause between triggers; its tasks read each shard of a batch once.

    Attributes:
        ages: of all records, when their rows came (seconds).
        batches: how many there were.
        reads: a second, of the shard that was read most, by planner and tasks.
    """

    def __init__(self, log: SteadyLog, limits: Limits = NO_LIMITS, threads: int = 64) -> None:
        self._log = log
        self._enumerator = new_enumerator(log, SECONDS_PER_READ, threads)
        self._enumerator.expect_reads()
        self._at = self._enumerator.initial()
        self._limits = limits
        self._task_reads: Counter[SplitId] = Counter()
        self.ages: list[float] = []
        self.batches = 0
        self._run(3.0)
        self.ages.clear()
        self.batches = 0
        before = log.reads + self._task_reads
        self._run(MEASURED)
        self.reads = max((log.reads + self._task_reads - before).values()) / MEASURED

    def age(self, part: float) -> float:
        """Of the youngest `part` of the records, the oldest."""
        return sorted(self.ages)[int(len(self.ages) * part)]

    def _run(self, seconds: float) -> None:
        until = self._log.elapsed + seconds
        while self._log.elapsed < until:
            end = self._enumerator.advance(self._at, self._limits)
            if end is self._at:
                self._log.elapsed += CALL
                continue
            self._log.elapsed += BATCH
            self.batches += 1
            for split in self._log.splits:
                self._take(split, end)
            self._at = end

    def _take(self, split: SplitId, end: Offsets) -> None:
        first, last = _count(self._at, split), _count(end, split)
        self._task_reads[split] += first < last
        now = self._log.server_time()
        self.ages += [(now - self._log.arrival(split, index)) / SECOND for index in range(first, last)]


def _count(at: Offsets, split: SplitId) -> int:
    """The number of a record says how many there are up to it."""
    position = at.position(split)
    return position.sequence if isinstance(position, After) else 0


RATES = pytest.mark.parametrize(
    ("rate", "size"), [(10, 100), (200, 100), (1000, 100), (1000, 1024), (1, 100 * 1024)]
)


@RATES
@pytest.mark.parametrize("limits", [NO_LIMITS, Limits(records=1_000_000)])
@pytest.mark.parametrize("shards", [1, 16])
def test_rows_come_soon_for_few_reads(rate: float, size: int, limits: Limits, shards: int) -> None:
    """Planner and tasks together make half of the reads that the service allows."""
    log = SteadyLog([Backlog(0.5 + 0.1 * n, -1, rate, size) for n in range(shards)], latency=0.005)
    query = NearTip(log, limits)
    is_heavy = rate * size > 2**18  # a page of a second would take the bytes that the task needs
    assert query.age(0.5) <= 0.8 + 0.5 * is_heavy
    assert query.age(0.95) <= 1.5 + 0.5 * is_heavy
    assert query.reads <= 2.6
    assert not log.refused


@pytest.mark.parametrize("seconds_per_read", [0.8, 4.0, 40.0])
def test_a_pause_between_reads_holds_back_no_backlog(seconds_per_read: float) -> None:
    """The pause is for what comes near the tip. A backlog is read in slices, one after the other."""
    log = SteadyLog([Backlog(1000, 100, 40, 100)], latency=0.005)
    enumerator = new_enumerator(log, seconds_per_read)
    enumerator.expect_reads()
    at = enumerator.initial()
    while _count(at, log.splits[0]) < log.count(log.splits[0]):
        at = enumerator.advance(at, Limits(records=5000))
        log.elapsed += BATCH
        assert log.elapsed <= 20
    assert not log.refused


def test_a_record_ahead_of_its_time_holds_back_no_other() -> None:
    """A host's clock may be wrong. The record is found at every instant before its time."""
    log = new_log()
    query = Query(log)
    records = [log.put("s", "key", b"x" * 1024, arrival=log.now + 600 * SECOND)]
    for _ in range(40):
        for _ in range(300):
            records.append(log.put("s", "key", b"x" * 1024))
            log.pass_time(1 / 300)
        query.run_batch()
    assert len(query.numbers()) >= len(records) - 600


def test_shards_are_read_together() -> None:
    """Although one has its answer later than another, so that a batch has records of all of them."""
    log = SteadyLog([Backlog(0.5 + 0.1 * n, -1, 10 + n, 100) for n in range(16)], latency=0.005)
    query = NearTip(log, threads=4)
    assert query.batches <= 1.1 * MEASURED / SECONDS_PER_READ


@pytest.mark.parametrize(("interval", "seconds"), [(0.0, 0.8), (0.2, 0.8), (1.0, 4.0)])
def test_the_pause_between_reads_is_for_the_planner_too(interval: float, seconds: float) -> None:
    """The other readers of a shard need not know which process of a query reads it."""
    source = MemorySource("log")
    source.read_interval = interval
    assert LogSource.probe_settings(source).seconds_per_read == seconds
