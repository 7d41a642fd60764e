"""Backlogs under the laws of the service: how fast they are read, and what planning costs of it."""

from __future__ import annotations

import pytest
from integration.model import KIB, MIB, KinesisModel, Laws, ManualClock, ModelLog
from query import at_horizon

from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.planning.enumerator import EnumeratorSettings, StreamEnumerator
from sluice.source.planning.planner import Planner, PlannerSettings
from sluice.source.probing.probe import Probe, ProbeSettings
from sluice.source.reading.reader import RangeReader, ReadSettings

RATE = 2 * MIB
THROTTLED = ("GetRecords", "ProvisionedThroughputExceededException")


class Backlog:
    """A stream of one shard, whose producer has written at 1 MiB a second, and a query that reads it."""

    def __init__(self, laws: Laws, *, records: int, size: int, seed: int = 0) -> None:
        self.model = KinesisModel(laws, ManualClock(), seed)
        self.log = log = ModelLog(self.model)
        self.model.create("s")
        self.records = records
        data = bytes(size)
        for number in range(records):
            self.model.put("s", str(number), data)
            log.pass_time(size / MIB)
        self._data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
        probe = Probe(log, self._data_loss, ProbeSettings(pause=log.sleep, clock=log.monotonic))
        planner = Planner(probe, log.server_time, PlannerSettings(threads=1))
        self._enumerator = StreamEnumerator(EnumeratorSettings(["s"], at_horizon), probe, planner)
        self.end = self._enumerator.initial()
        self.read = 0

    def run_batch(self) -> None:
        """Plans a batch and reads it, as a task does."""
        start, self.end = self.end, self._enumerator.advance(self.end)
        settings = ReadSettings(10_000, 0.2, self.log.sleep, self.log.monotonic)
        for split_range in self._enumerator.ranges(start, self.end):
            reader = RangeReader(self.log, self._data_loss, settings, split_range)
            self.read += sum(len(page) for page in reader.read())

    def run_available(self) -> None:
        """Plans and reads all existing records."""
        self._enumerator.stop_at_available()
        while self.read < self.records:
            self.run_batch()

    def run(self) -> float:
        """Reads all, with a tenth of a second between two batches; the seconds that it took."""
        began = self.log.monotonic()
        while self.read < self.records:
            self.run_batch()
            self.log.sleep(0.1)
        return self.log.monotonic() - began


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("size", "mib"), [(100 * KIB, 64), (MIB, 64), (10 * MIB, 160)])
def test_a_backlog_is_read_at_the_limit(size: int, mib: int, seed: int) -> None:
    """At no less than four fifths of 2 MiB a second, planning included."""
    backlog = Backlog(Laws(empty_pages=5), records=mib * MIB // size, size=size, seed=seed)
    seconds = backlog.run()
    assert mib * MIB / seconds >= 0.8 * RATE, f"{seconds:.0f} s for {mib} MiB"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("records", [1, 50, 1_000, 20_000])
def test_planning_keeps_to_the_reads_a_second(records: int, seed: int) -> None:
    """Where nobody else reads, no read of the planner is refused: its waits are its own, and not retries."""
    backlog = Backlog(Laws(), records=records, size=100, seed=seed)
    refused = backlog.model.refusals
    for _ in range(3):
        start = backlog.end
        backlog.end = backlog._enumerator.advance(start)
        assert refused[THROTTLED] == 0
        backlog.log.sleep(1.0)


def test_waits_for_the_limit_continue_while_spark_takes_a_page() -> None:
    """A page of 10 MiB is paid for after 5 s, whether they were slept or spent on the page before."""
    backlog = Backlog(Laws(empty_pages=0), records=60, size=MIB)
    backlog._enumerator.stop_at_available()
    start, end = backlog.end, backlog._enumerator.advance(backlog.end)
    (split_range,) = backlog._enumerator.ranges(start, end)
    settings = ReadSettings(10_000, 0.2, backlog.log.sleep, backlog.log.monotonic)
    began = backlog.log.monotonic()
    pages = 0
    for _ in RangeReader(backlog.log, backlog._data_loss, settings, split_range).read():
        pages += 1
        backlog.log.sleep(3.0)
    assert pages >= 5
    assert backlog.log.monotonic() - began <= 5.5 * pages + 5


def test_a_run_of_what_is_available_is_probed_once() -> None:
    """What the search for its end has read is planned as it is."""
    backlog = Backlog(Laws(empty_pages=0), records=50, size=100)
    backlog.run_available()
    assert backlog.read == 50
    assert backlog.log.limits.count(2) == 1  # records of the first page, of whose size nothing is known


def test_planning_waits_out_what_it_has_read() -> None:
    """A record of 10 MiB takes 5 s. A plan reads a few, without asking again and again in between."""
    backlog = Backlog(Laws(empty_pages=0), records=16, size=10 * MIB)
    began = backlog.log.monotonic()
    backlog._enumerator.advance(backlog.end)
    assert backlog.log.monotonic() - began <= 20.0
    assert backlog.model.refusals[THROTTLED] <= 4  # one call with its retries
