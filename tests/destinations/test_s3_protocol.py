"""Destination s3 under arbitrary failures: each row is committed once, and nothing else is left."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from fake_s3 import BACKOFF, Crash, FakeS3, committed_keys, committed_rows, destination, refusal, retrier
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from sluice.errors import CommitError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

SCHEMA = StructType([StructField("id", LongType()), StructField("part", LongType())])
PARTITIONS = 2
BATCHES = 4
QUERY = "query-1"

KINDS = ("crash-before", "crash-after", "lost", "late", "busy", "outage", "forbidden")


@dataclass
class Faults:
    """Faults in order: each with the number of calls before it that succeed, and its kind."""

    planned: list[tuple[int, str]]
    _calm: int = 0
    _outage: int = 0

    def __call__(self, _number: int, operation: str) -> str | Exception | None:
        if self._outage:
            self._outage -= 1
            return refusal("SlowDown", 503)
        if not self.planned:
            return None
        self._calm += 1
        if self._calm <= self.planned[0][0]:
            return None
        self._calm = 0
        _, kind = self.planned.pop(0)
        if kind == "late" and operation != "put_object":
            kind = "lost"
        event(f"{kind} at {operation}")
        if kind == "outage":  # longer than the retries of a call, shorter than those of a commit
            self._outage = 9
        if kind in ("busy", "outage"):
            return refusal("SlowDown", 503)
        return refusal("AccessDenied", 403) if kind == "forbidden" else kind


@dataclass
class Spark:
    """A streaming query as Spark runs it: run after run, until all batches are in its commit log.

    Args:
        s3: takes the calls.
        moods: numbers that select failures outside of S3. A task: 3: the worker is killed; 4: another attempt
            was faster. A commit: 1: it is called twice; 2: the driver dies before Spark has logged it.
    """

    s3: FakeS3
    moods: Iterator[int]
    logged: int = 0
    runs: int = 0
    name: str = field(default_factory=lambda: uuid.uuid4().hex)  # a run's id is never used twice
    attempts: int = 0

    def run(self, batches: int) -> None:
        """One run, until it ends or is killed."""
        self.runs += 1
        self.s3.dead = False
        try:
            while self.logged < batches:
                if not self._batch(self.logged):
                    return
                self.logged += 1
        except Crash:
            return

    def _batch(self, batch: int) -> bool:
        epoch = Epoch(QUERY, f"{self.name}-{self.runs}", batch)
        messages = [self._task(epoch, partition) for partition in range(PARTITIONS)]
        done = [message for message in messages if message is not None]
        uploads = [upload for message in done for upload in message]
        made = EpochCommit(
            destination(self.s3, partition_by=("part",)), epoch, retrier=retrier(), backoff=BACKOFF
        )
        try:
            if len(done) < len(messages):
                made.abort(uploads)
                return False
            made.commit(uploads)
            if next(self.moods) == 1:
                made.commit(uploads)
            return next(self.moods) != 2  # else the driver dies before Spark logs the commit
        except CommitError:
            with contextlib.suppress(CommitError):
                made.abort(uploads)
            return False

    def _task(self, epoch: Epoch, partition: int) -> list[Any] | None:
        for _ in range(2):
            self.attempts += 1
            mood = next(self.moods)
            batch = epoch.batch or 0
            origin = Origin("s3", QUERY, epoch.run, batch, partition, self.attempts)
            writer = destination(self.s3, partition_by=("part",)).create_writer(SCHEMA, origin)
            try:
                writer.write(contents(batch, partition))
                if mood == 3:  # the worker is killed
                    continue
                prepared = writer.prepare_commit()
            except ServiceError:
                writer.abort()
            else:
                if mood != 4:  # else another attempt was faster
                    return prepared
            finally:
                writer.close()
        return None


def contents(batch: int, partition: int) -> pa.RecordBatch:
    """The rows of a task; some tasks have none."""
    count = (batch * 3 + partition * 2) % 4
    ids = [batch * 100 + partition * 10 + n for n in range(count)]
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids, pa.int64()), "part": pa.array([n % 2 for n in ids], pa.int64())}
    )


def sent(batches: int) -> list[int]:
    return [
        row
        for batch in range(batches)
        for partition in range(PARTITIONS)
        for row in contents(batch, partition).column(0).to_pylist()
    ]


def moods(drawn: list[int]) -> Iterator[int]:
    yield from drawn
    while True:
        yield 0


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 25), st.sampled_from(KINDS)), max_size=10),
    st.lists(st.integers(0, 8), max_size=60),
    st.booleans(),
    st.sampled_from([None, "CRC32", "SHA256"]),
)
def test_rows_are_committed_once_and_nothing_is_left(
    faults: list[tuple[int, str]], drawn: list[int], idempotent: bool, sdk_checksum: str | None
) -> None:
    """The driver is killed between any two calls, or between the commit and Spark's log of it."""
    s3 = FakeS3(idempotent=idempotent, sdk_checksum=sdk_checksum)
    s3.fault = Faults(faults)
    spark = Spark(s3, moods(drawn))
    while spark.logged < BATCHES and spark.runs < 20:
        spark.run(BATCHES)
        s3.dead = False
        s3.fault, planned = (lambda _number, _operation: None), s3.fault
        seen = Counter(row["id"] for row in committed_rows(s3))
        # The current batch is committed as a whole, or not at all.
        assert seen in (Counter(sent(spark.logged)), Counter(sent(spark.logged + 1)))
        s3.fault = planned
    s3.fault = lambda _number, _operation: None
    s3.apply_late_calls()
    spark.moods = moods([])
    spark.run(BATCHES + 2)

    assert spark.logged == BATCHES + 2
    assert Counter(row["id"] for row in committed_rows(s3)) == Counter(sent(BATCHES + 2))
    assert s3.uploads == {}
    assert s3.data == set(committed_keys(s3))
    assert s3.pending == set()


@dataclass
class Write:
    """A batch write as Spark runs it."""

    s3: FakeS3
    outcome: str = ""
    epoch: Epoch = field(default_factory=lambda: Epoch(None, "w1", None))

    def run(self) -> None:
        try:
            self._run()
        except Crash:
            self.outcome = "killed"

    def _run(self) -> None:
        prepared = []
        made = EpochCommit(destination(self.s3), self.epoch, retrier=retrier(), backoff=BACKOFF)
        try:
            for partition in range(PARTITIONS):
                writer = destination(self.s3).create_writer(
                    SCHEMA, Origin("s3", None, "w1", None, partition, 1)
                )
                writer.write(contents(1, partition))
                prepared += writer.prepare_commit()
            made.commit(prepared)
            self.outcome = "done"
        except (CommitError, ServiceError):
            self.outcome = "failed"
            self.s3.fault = lambda _number, _operation: None  # so that the abort succeeds
            made.abort(prepared)
            made.abort(prepared)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(KINDS)), max_size=4))
def test_a_batch_write_is_committed_as_a_whole(faults: list[tuple[int, str]]) -> None:
    """After a success all rows; after a failure none, even if calls arrive late; if it was killed, either."""
    s3 = FakeS3()
    s3.fault = Faults(faults)
    write = Write(s3)
    write.run()
    s3.dead = False
    s3.fault = lambda _number, _operation: None
    s3.apply_late_calls()
    found = sorted(row["id"] for row in committed_rows(s3))
    event(write.outcome)

    assert found in ([[]] if write.outcome == "failed" else [sent(2)[-len(found) :], []])
    if write.outcome == "done":
        assert found == sorted(sent(2)[len(sent(1)) :])
    if write.outcome != "killed":
        assert s3.data == set(committed_keys(s3))
        assert s3.uploads == {} or write.outcome == "done"  # S3 may have refused their removal
    if write.outcome == "failed":
        assert s3.pending == set()
