"""A driver that is killed in the middle of a batch, again and again: every batch comes again as it was."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark.sql import SparkSession

from integration.support.kinesis import Streams
from integration.support.paths import ROOT
from integration.support.processes import marked_processes
from integration.support.queries import read_stream, wait_until
from integration.support.recorder import Recorder
from integration.support.replay_driver import BEFORE, HALF, WRITTEN, DriverPlan
from integration.support.servers import FaultProxy

SHARDS = 3
BACKLOG = 3000
PER_PUT = 5
MEANWHILE = 400
PER_AGGREGATE = 5
OPTIONS = {"maxRecordsPerTrigger": "600", "shardsPerTask": "1"}
SEED = 20261121
TIMEOUT = 90.0

Line = tuple[str, str, int, str]
"""Shard, sequence number, sub-sequence number, data in hex."""


@dataclass
class Producer:
    """Puts single records and aggregated ones, and knows what rows they make."""

    streams: Streams
    stream: str
    expected: list[Line] = field(default_factory=list)
    _count: int = 0

    def put(self, records: int) -> None:
        made = [self._record() for _ in range(records)]
        placed = self.streams.put(self.stream, [(key, blob) for key, blob, _ in made])
        for where, (_, _, contents) in zip(placed, made, strict=True):
            self.expected += [
                (where.shard, where.sequence_number, sub, data.hex()) for sub, data in enumerate(contents)
            ]

    def _record(self) -> tuple[str, bytes, list[bytes]]:
        """Partition key, what is put, and what rows it holds; one in ten is aggregated."""
        self._count += 1
        key = f"key-{self._count % 41}"
        if self._count % 10:
            data = f"record {self._count}".encode()
            return key, data, [data]
        contents = [f"record {self._count}.{sub}".encode() for sub in range(PER_AGGREGATE)]
        aggregator = RecordAggregator()
        for data in contents:
            aggregator.add_user_record(key, data)
        return key, aggregator.clear_and_get().get_contents()[2], contents

    @contextlib.contextmanager
    def putting(self) -> Iterator[None]:
        """Puts on and on, beside what the ``with`` block does."""
        stopping = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                while not stopping.wait(0.25):
                    self.put(PER_PUT)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join(TIMEOUT)
        if failed:
            raise failed[0]


class Driver:
    """A driver with its JVM and Python workers; all of them have `mark` in their environment."""

    def __init__(self, plan: DriverPlan) -> None:
        self.plan = plan
        self.mark = uuid.uuid4().hex
        self.log = Path(plan.directory, f"driver-{plan.attempt}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "integration.support.replay_driver", plan.to_json()),
                cwd=ROOT,
                env={**os.environ, "SLUICE_TEST_MARK": self.mark},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def processes(self) -> list[int]:
        """All there are of it. Python workers are in process groups of their own."""
        return marked_processes(self.mark)

    def kill(self) -> None:
        """SIGKILL for the driver, the JVM and the workers, and none is left when this returns."""
        alive = self.processes()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # driver and JVM at once
        while alive:
            for process in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            alive = self.processes()
        self.process.wait(TIMEOUT)
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        """Lets it end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(TIMEOUT) == 0, self.log.read_text()
        wait_until(lambda: not self.processes(), "the driver's processes are gone")

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.log.read_text(), text)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        def check() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return holds()

        try:
            wait_until(check, what, timeout=TIMEOUT)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the driver's log:\n{self.log.read_text()}") from None


@dataclass(frozen=True)
class Outcome:
    """What the attempts left on disk."""

    whole: Mapping[int, Mapping[int, Sequence[Line]]]  # batch, attempt, rows
    parts: Mapping[int, Mapping[int, Sequence[Line]]]  # the same of what was cut short

    @classmethod
    def of(cls, output: Path) -> Outcome:
        return cls(_read(output, "jsonl"), _read(output, "part"))

    @property
    def rows(self) -> list[Line]:
        """The union of all batches, each as its last attempt had it."""
        return [row for attempts in self.whole.values() for row in attempts[max(attempts)]]

    def replayed(self) -> list[int]:
        """The batches that more than one attempt read, in whole or in part."""
        return [batch for batch in self.whole if len({*self.whole[batch], *self.parts.get(batch, {})}) > 1]

    def check_replays(self) -> None:
        """The same rows for the same batch, in each shard in the same order; parts are beginnings of it."""
        for batch, attempts in self.whole.items():
            last = by_shard(attempts[max(attempts)])
            for rows in attempts.values():
                assert by_shard(rows) == last, f"batch {batch}"
            for rows in self.parts.get(batch, {}).values():
                for shard, part in by_shard(rows).items():
                    assert part == last[shard][: len(part)], f"batch {batch}"


def _read(output: Path, suffix: str) -> dict[int, dict[int, list[Line]]]:
    found: dict[int, dict[int, list[Line]]] = defaultdict(dict)
    for file in output.glob(f"*.{suffix}"):
        batch, attempt = map(int, file.stem.split("-"))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[batch][attempt] = [(str(a), str(b), int(c), str(d)) for a, b, c, d in lines]
    return dict(sorted(found.items()))


def by_shard(rows: Sequence[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


def count_rows(output: Path) -> int:
    return sum(1 for row in Outcome.of(output).rows)


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """What a test adds here is gone at its end."""
    started: list[Driver] = []
    yield started
    for driver in started:
        driver.kill()
    assert [process for driver in started for process in driver.processes()] == []


def test_a_killed_driver_reads_the_same_batches_again(
    streams: Streams, tmp_path: Path, drivers: list[Driver]
) -> None:
    """Killed with SIGKILL at any moment of a batch, and started again from its checkpoint while records
    keep coming, a query is given the same rows for the same batch id, in each shard in the same order;
    all batches together hold every record exactly once.
    """
    stream = streams.create(SHARDS)
    producer = Producer(streams, stream)
    producer.put(BACKLOG)
    plan = DriverPlan(0, streams.endpoint, stream, str(tmp_path), OPTIONS)
    plan.output.mkdir()
    moments = [(2, HALF), (4, WRITTEN), (4, BEFORE)]  # and once at random

    with producer.putting():
        for attempt, (batch, moment) in enumerate(moments):
            driver = Driver(replace(plan, attempt=attempt, stop_at=(batch, moment)))
            drivers.append(driver)
            driver.wait_for(f"reached {moment} of batch ")
            driver.kill()
            producer.put(MEANWHILE)  # a batch that is logged must not take in what comes later
        at_random = Driver(replace(plan, attempt=len(moments)))
        drivers.append(at_random)
        newest = max(Outcome.of(plan.output).whole)
        at_random.wait_until(
            lambda: max(Outcome.of(plan.output).whole) > newest, "the batches after the last kill"
        )
        time.sleep(random.Random(SEED).uniform(0.1, 1.0))
        at_random.kill()
    producer.put(MEANWHILE)
    last = Driver(replace(plan, attempt=len(moments) + 1))
    drivers.append(last)
    last.wait_until(lambda: count_rows(plan.output) >= len(producer.expected), "all that was put")
    last.end()

    outcome = Outcome.of(plan.output)
    outcome.check_replays()
    assert Counter(outcome.rows) == Counter(producer.expected)
    replayed = outcome.replayed()
    assert {2, 4} <= set(replayed)
    print(
        f"\nreplay: {len(moments) + 1} kills, {len(outcome.whole)} batches, {len(replayed)} read more than "
        f"once, {len(outcome.rows)} rows, all of them once"
    )


def test_the_first_batch_after_a_start_at_the_latest_comes_again_as_it_was(
    spark: SparkSession,
    resharding_streams: Streams,
    kinesis_local_faults: FaultProxy,
    checkpoint: str,
) -> None:
    """Where `LATEST` was is logged with the first batch: when that fails, its rows are not passed over."""
    streams = resharding_streams
    stream = streams.create(2)
    put: list[bytes] = []
    # While the shards are listed for the first time, after the start is pinned, records arrive.
    kinesis_local_faults.set_rules({"service": "kinesis", "operation": "ListShards", "latency": 2000})
    recorder = Recorder(checkpoint)

    def fail(batch: int) -> None:
        raise RuntimeError(f"the application fails in batch {batch}")

    recorder.intervene = fail
    query = recorder.start(
        read_stream(spark, kinesis_local_faults.endpoint, stream, startingPosition="LATEST")
    )
    number = 0
    while query.isActive:
        number += 1
        put.append(f"record {number}".encode())
        streams.put(stream, [(f"key-{number}", put[-1])])
    kinesis_local_faults.clear()
    logged = json.loads(Path(checkpoint, "offsets", "0").read_text().splitlines()[-1])
    ends = logged["streams"][stream]
    assert any("after" in position for position in ends.values()), "the first batch had no records"

    recorder.intervene = lambda _batch: None
    query = recorder.start(
        read_stream(spark, kinesis_local_faults.endpoint, stream, startingPosition="LATEST")
    )
    recorder.wait_for_data(query, put[-1:])
    query.stop()

    read = recorder.data()
    first = min(int(data.split()[1]) for data in read)
    assert Counter(read) == Counter(put[first - 1 :])
    assert any(row.batch == 0 for row in recorder.rows)
    assert first > 1
