"""Files under arbitrary failures: readers see each row once at every moment, and nothing else is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from fake_s3 import BACKOFF, Crash, refusal, retrier
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType
from worlds import EACH_STORE, EACH_WAY, World, Worlds, no_fault, nothing

from sluice.destinations.files import FilesDestination
from sluice.errors import CommitError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

STRINGS = StructType([StructField("id", LongType()), StructField("part", StringType())])
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
        world: takes the calls.
        publish: the option.
        target: the option `targetFileSize`.
        moods: numbers that select failures outside of the store. A task: 3: the worker is killed; 4: another
            attempt was faster. A commit: 1: it is called twice; 2: the driver dies before Spark logs it.
    """

    schema: ClassVar[StructType] = SCHEMA
    world: World
    publish: str
    moods: Iterator[int]
    logged: int = 0
    runs: int = 0
    target: int | None = None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)  # a run's id is never used twice
    attempts: int = 0
    checked: tuple[int, Mapping[str, bytes]] | None = None
    seen_wrong: list[str] = field(default_factory=list)

    def run(self, batches: int) -> None:
        """One run, until it ends or is killed."""
        self.runs += 1
        self.world.restart()
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
        made = EpochCommit(self._destination(), epoch, retrier=retrier(), backoff=BACKOFF)
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

    def _destination(self) -> FilesDestination:
        return self.world.destination(
            partition_by=("part",),
            publish=self.publish,
            target_file_size=self.target,
            replaced_file_retention=0.0,
        )

    def _contents(self, batch: int, partition: int) -> pa.RecordBatch:
        return contents(batch, partition)

    def _task(self, epoch: Epoch, partition: int) -> list[Any] | None:
        for _ in range(2):
            self.attempts += 1
            mood = next(self.moods)
            batch = epoch.batch or 0
            origin = Origin("s3", QUERY, epoch.run, batch, partition, self.attempts)
            rows = self._contents(batch, partition)
            writer = self._destination().create_writer(self.schema, origin)
            try:
                writer.write(rows)
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


def check_readers(spark: Spark) -> None:
    """All batches that Spark has logged, each row once; and the current one as a whole, in part, or not."""
    world, files = spark.world, spark.world.files()
    if (spark.logged, files) == spark.checked:
        return
    spark.checked = spark.logged, files
    logged, current = Counter(sent(spark.logged)), Counter(sent(spark.logged + 1))
    found = world.by_manifests()
    if found not in (logged, current):  # the tested code may catch an exception
        spark.seen_wrong.append(f"manifests, {spark.logged} logged: {found}")
    partly = {"manifest": [], "symlink": [world.by_symlinks], "visible": [world.by_listing]}
    for read in partly[spark.publish]:
        found = read()
        if not logged <= found <= current:
            spark.seen_wrong.append(f"{read.__name__}, {spark.logged} logged: {found}")


@EACH_STORE
@EACH_WAY
@settings(max_examples=25)
@given(
    faults=st.lists(st.tuples(st.integers(0, 25), st.sampled_from(KINDS)), max_size=10),
    drawn=st.lists(st.integers(0, 8), max_size=60),
    idempotent=st.booleans(),
    sdk_checksum=st.sampled_from([None, "CRC32", "SHA256"]),
)
def test_rows_are_committed_once_and_nothing_is_left(
    worlds: Worlds,
    store: str,
    publish: str,
    faults: list[tuple[int, str]],
    drawn: list[int],
    *,
    idempotent: bool,
    sdk_checksum: str | None,
) -> None:
    """The driver is killed between any two calls, or between the commit and Spark's log of it."""
    world = worlds.new(store, idempotent=idempotent, sdk_checksum=sdk_checksum)
    world.fault = Faults(faults)
    spark = Spark(world, publish, moods(drawn))
    world.changed = lambda: check_readers(spark)
    while spark.logged < BATCHES and spark.runs < 20:
        spark.run(BATCHES)
    world.fault = no_fault
    world.arrive()
    spark.moods = moods([])
    spark.run(BATCHES + 2)
    world.changed = nothing

    assert spark.seen_wrong == []
    assert spark.logged == BATCHES + 2
    everything = Counter(sent(BATCHES + 2))
    assert world.by_manifests() == world.by_listing() == everything
    if publish == "symlink":
        assert world.by_symlinks() == everything
    assert world.leftovers() == set()


@dataclass
class Write:
    """A batch write as Spark runs it."""

    world: World
    publish: str
    outcome: str = ""
    epoch: Epoch = field(default_factory=lambda: Epoch(None, "w1", None))

    def run(self) -> None:
        try:
            self._run()
        except Crash:
            self.outcome = "killed"

    def _run(self) -> None:
        prepared = []
        made = EpochCommit(self._destination(), self.epoch, retrier=retrier(), backoff=BACKOFF)
        try:
            for partition in range(PARTITIONS):
                writer = self._destination().create_writer(
                    SCHEMA, Origin("s3", None, "w1", None, partition, 1)
                )
                writer.write(contents(1, partition))
                prepared += writer.prepare_commit()
            made.commit(prepared)
            self.outcome = "done"
        except (CommitError, ServiceError):
            self.outcome = "failed"
            self.world.fault = no_fault  # so that the abort succeeds
            made.abort(prepared)
            made.abort(prepared)

    def _destination(self) -> FilesDestination:
        return self.world.destination(publish=self.publish)


@EACH_STORE
@EACH_WAY
@settings(max_examples=70)
@given(faults=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(KINDS)), max_size=4))
def test_a_batch_write_is_committed_as_a_whole(
    worlds: Worlds, store: str, publish: str, faults: list[tuple[int, str]]
) -> None:
    """After a success all rows; after a failure none, even if calls arrive late; if it was killed, either."""
    world = worlds.new(store)
    world.fault = Faults(faults)
    write = Write(world, publish)
    write.run()
    world.restart()
    world.fault = no_fault
    world.arrive()
    found, everything = world.by_manifests(), Counter[int](sent(2)[len(sent(1)) :])
    event(write.outcome)

    allowed: dict[str, list[Counter[int]]] = {
        "failed": [Counter()],
        "done": [everything],
        "killed": [everything, Counter()],
    }
    assert found in allowed[write.outcome]
    if write.outcome != "killed":
        assert world.by_listing() == found
        assert world.by_symlinks() == (found if publish == "symlink" else Counter())
    if write.outcome == "failed":  # else the store may have refused their removal
        assert world.leftovers() == set()


@dataclass
class LastDeletion:
    """Once a file is published, the answer to a deletion is lost, and from then on the store is down."""

    publishing: bool = False
    lost: bool = False

    def __call__(self, _number: int, operation: str) -> str | Exception | None:
        if self.lost:
            return refusal("SlowDown", 503)
        self.publishing |= operation in ("publish", "complete_multipart_upload")
        self.lost = self.publishing and operation in ("delete", "delete_object")
        return "lost" if self.lost else None


@EACH_STORE
@EACH_WAY
def test_cleaning_up_does_not_fail_what_is_committed(worlds: Worlds, store: str, publish: str) -> None:
    """An abort would find nothing to undo: without a pending list, all rows are committed."""
    world = worlds.new(store)
    fault = world.fault = LastDeletion()
    write = Write(world, publish)
    write.run()
    world.fault = no_fault

    assert fault.lost
    assert write.outcome == "done"
    assert world.by_manifests() == world.by_listing() == Counter(sent(2)[len(sent(1)) :])


@EACH_WAY
def test_what_is_committed_survives_a_loss_of_power(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    """Power is lost when there is a manifest, and again at the end: names that were not synchronised go."""
    world, calls = worlds.new("local"), []
    names: dict[int, set[str]] = {}  # of each directory, as synchronised last

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            names[status.st_ino] = set(os.listdir(descriptor))

    def lose_power() -> None:
        for directory in [path for path in Path(world.layout.path).rglob("*") if path.is_dir()]:
            for path in [*directory.iterdir()] if directory.exists() else ():
                if path.name not in names.get(directory.stat().st_ino, ()):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def fault(_number: int, operation: str) -> str | None:
        calls.append(operation)
        return "crash-after" if operation == "put_if_absent" and "put" in calls else None

    monkeypatch.setattr(os, "fsync", fsync)
    world.fault = fault
    spark = Spark(world, publish, moods([]))
    spark.run(1)
    assert world.dead
    lose_power()
    assert world.layout.manifest(QUERY, 0) in world.files()

    world.fault = no_fault
    spark.run(BATCHES)
    lose_power()
    assert spark.logged == BATCHES
    assert world.by_manifests() == world.by_listing() == Counter(sent(BATCHES))
    assert world.by_symlinks() == Counter(sent(BATCHES) if publish == "symlink" else [])


@EACH_STORE
def test_symlink_manifests_of_any_value(worlds: Worlds, store: str) -> None:
    """A line ends where Hive ends it: not at characters that only Python takes for the end of a line."""
    world = worlds.new(store)
    destination = world.destination(partition_by=("part",), publish="symlink")
    parts = ["two words", "\x85", "a\u2028b", "\r\n", None]
    rows = pa.RecordBatch.from_pydict({"id": range(5), "part": parts})
    for batch in range(2):
        writer = destination.create_writer(STRINGS, Origin("s3", QUERY, "run", batch, 0, batch))
        writer.write(rows)
        EpochCommit(destination, Epoch(QUERY, "run", batch), backoff=BACKOFF).commit(writer.prepare_commit())
        writer.close()
        assert world.by_symlinks() == Counter([*range(5)] * (batch + 1))
