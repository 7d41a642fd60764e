"""Partition commit: a partition has its marker exactly when the watermark has passed its end."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from fake_s3 import BACKOFF, Crash, retrier
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from test_files_protocol import KINDS, Faults, Spark, moods
from worlds import EACH_STORE, EACH_WAY, Worlds, no_fault, nothing

import sluice
from sluice.cli.app import main
from sluice.destinations import read_sink
from sluice.destinations.files import FilesDestination, partition_commit
from sluice.destinations.files.manifest import Manifest
from sluice.destinations.files.partition_commit import Completion
from sluice.errors import CommitError, OptionError, SluiceError
from sluice.instants import EPOCH
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

HOUR = 3600
DAYS = 4
SCHEMA = StructType(
    [StructField("id", LongType()), StructField("at", TimestampType()), StructField("Day", DateType())]
)
HOOK = "test_partition_commit:hook"

Batch = list[list[int | None]]  # for each task, the hours of its rows

told: list[tuple[str, dict[str, str | None]]] = []
hook_moods: Iterator[int] = moods([])


def hook(url: str, values: dict[str, str | None]) -> None:
    """1: the driver dies in it; 2: a temporary failure; 3: a permanent one."""
    match next(hook_moods):
        case 1:
            raise Crash
        case 2:
            raise SluiceError("throttled", retryable=True)
        case 3:
            raise CommitError("no such table")
    told.append((url, values))


@pytest.fixture(autouse=True)
def _hooks() -> None:
    global hook_moods  # noqa: PLW0603 - the option names a function
    hook_moods = moods([])
    told.clear()
    partition_commit._warned.clear()


def rows(hours: list[int | None], first_id: int) -> pa.RecordBatch:
    """Rows at some hours of the first days of 1970; None: a row without a timestamp or a day."""
    times = [None if hour is None else EPOCH + timedelta(hours=hour) for hour in hours]
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(range(first_id, first_id + len(hours)), pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "Day": pa.array([None if each is None else each.date() for each in times], pa.date32()),
        }
    )


def day_of(hour: int) -> str:
    return (EPOCH + timedelta(hours=hour)).date().isoformat()


@dataclass
class Query(Spark):
    """A query with a marker and a hook.

    Attributes:
        batches: the rows.
        delay: of the watermark (hours).
        marked: days with a marker, when it was looked last.
    """

    schema: ClassVar[StructType] = SCHEMA
    batches: list[Batch] = field(default_factory=list)
    delay: int = 0
    marked: set[str] = field(default_factory=set)

    def _destination(self) -> FilesDestination:
        completion = Completion("AT", ("day",), "_SUCCESS", HOOK, self.delay * HOUR)
        return self.world.destination(partition_by=("day",), publish=self.publish, completion=completion)

    def _contents(self, batch: int, partition: int) -> pa.RecordBatch:
        return rows(self.batches[batch][partition], batch * 100 + partition * 10)

    def _batch(self, batch: int) -> bool:
        is_logged = super()._batch(batch)
        hours = [hour for each in self.batches[: batch + 1] for task in each for hour in task]
        if is_logged and self.marks() != self.due(hours):
            self.seen_wrong.append(f"batch {batch}: {self.marks()} is marked, {self.due(hours)} is due")
        return is_logged

    def due(self, hours: list[int | None]) -> set[str]:
        """The days that are complete when rows at these hours are committed."""
        known = [hour for hour in hours if hour is not None]
        passed = max(known, default=0) - self.delay
        return {day_of(hour) for hour in known if hour // 24 * 24 + 24 <= passed}

    def marks(self) -> set[str]:
        keys = [path for path in self.world.files() if path.endswith("_SUCCESS")]
        assert all(key.count("/") == 1 and key.startswith("Day=") for key in keys)
        return {key.split("/")[0].removeprefix("Day=") for key in keys}

    def look(self) -> None:
        """At any moment: a marker is there only if its day is due, the hook was called, and readers see
        all rows that were committed until it appeared."""
        now = self.marks() and (self.logged, self.world.files())
        if not now or now == self.checked:
            self.marked = self.marks()
            return
        self.checked = now
        hour_of = {
            batch * 100 + partition * 10 + number: hour
            for batch, tasks in enumerate(self.batches)
            for partition, hours in enumerate(tasks)
            for number, hour in enumerate(hours)
        }
        committed, marked = self.world.by_manifests(), self.marks()
        reads = {"manifest": self.world.by_manifests, "symlink": self.world.by_symlinks}
        seen = reads.get(self.publish, self.world.by_listing)()
        if not marked <= self.due([hour_of[each] for each in committed]):
            self.seen_wrong.append(f"{marked} is marked too early")
        if not marked <= {str(values["Day"]) for _, values in told}:
            self.seen_wrong.append(f"{marked} is marked, {told} was told")
        for day in marked:
            hour_of_day = {each: hour for each, hour in hour_of.items() if hour is not None}
            of_day = {each for each in committed if day_of(hour_of_day.get(each, -1)) == day}
            if day in self.marked:  # more rows may be late
                of_day = {each for each in of_day if each < self.logged * 100}
            if not of_day <= set(seen):
                self.seen_wrong.append(f"{day} is marked, and readers miss rows of it")
        self.marked = marked


hours = st.lists(st.one_of(st.integers(0, DAYS * 24), st.none()), max_size=3)


@EACH_STORE
@EACH_WAY
@settings(max_examples=20)
@given(
    batches=st.lists(st.tuples(hours, hours).map(list), min_size=1, max_size=5),
    delay=st.integers(0, 30),
    faults=st.lists(st.tuples(st.integers(0, 25), st.sampled_from(KINDS)), max_size=8),
    drawn=st.lists(st.integers(0, 8), max_size=40),
    of_hook=st.lists(st.integers(0, 5), max_size=8),
)
def test_a_marker_exists_exactly_when_the_watermark_has_passed(
    worlds: Worlds,
    store: str,
    publish: str,
    batches: list[Batch],
    delay: int,
    *,
    faults: list[tuple[int, str]],
    drawn: list[int],
    of_hook: list[int],
) -> None:
    """The driver is killed between any two calls and in the hook; calls fail, and so does the hook."""
    global hook_moods  # noqa: PLW0603 - as above
    hook_moods = moods(of_hook)
    told.clear()
    world = worlds.new(store)
    world.fault = Faults(faults)
    query = Query(world, publish, moods(drawn), batches=batches, delay=delay)
    world.changed = query.look
    while query.logged < len(batches) and query.runs < 30:
        query.run(len(batches))
    world.fault = no_fault
    world.arrive()
    query.moods, hook_moods = moods([]), moods([])
    batches += [[[0], []], [[], [1]]]  # which remove the remains
    query.run(len(batches))
    world.changed = nothing
    event(f"{len(query.marks())} days are complete")

    assert query.seen_wrong == []
    assert query.logged == len(batches)
    assert query.marks() == query.due([hour for each in batches for task in each for hour in task])
    total = sum(len(task) for each in batches for task in each)
    assert sum(world.by_manifests().values()) == sum(world.by_listing().values()) == total
    assert world.leftovers() == set()


@EACH_STORE
@EACH_WAY
def test_late_rows_commit_their_partition_again(worlds: Worlds, store: str, publish: str) -> None:
    """The hook gets what a table has as the partition's location; a row without a day delays nothing."""
    world = worlds.new(store)
    query = Query(world, publish, moods([]), batches=[[[1, 2, None], [30]], [[31], [25]], [[3], []]])
    query.run(2)
    tables = "_symlink_format_manifest/" if publish == "symlink" else ""
    url = world.layout.url(f"{tables}Day=1970-01-01/")
    assert told == [(url, {"Day": "1970-01-01"})]
    world.reader().delete(f"{world.layout.root}Day=1970-01-01/_SUCCESS")

    query.run(3)
    assert told == [(url, {"Day": "1970-01-01"})] * 2
    assert query.marks() == {"1970-01-01"}
    assert json.loads(world.reader().read(world.layout.partitions("query-1")) or b"") == {
        "latest": 31 * HOUR * 1_000_000,
        "open": ["Day=1970-01-02/"],
    }


def test_a_hook_is_not_repeated_for_others_that_fail(worlds: Worlds) -> None:
    """Otherwise a service that refuses every tenth call would never get through ten calls."""
    global hook_moods  # noqa: PLW0603 - as above
    hook_moods = moods([0, 0, 2, 0, 2])
    world = worlds.new("local")
    query = Query(world, "manifest", moods([]), batches=[[[1, 25, 49], [96, 73]]])
    query.run(1)

    assert [values["Day"] for _, values in told] == [f"1970-01-0{n}" for n in (1, 2, 3, 4)]
    assert query.logged == 1


@EACH_STORE
@EACH_WAY
def test_a_hook_that_fails_fails_the_commit(worlds: Worlds, store: str, publish: str) -> None:
    """The batch is committed for readers, and no partition is marked; the restart calls the hook again."""
    global hook_moods  # noqa: PLW0603 - as above
    hook_moods = moods([0, 3])
    world = worlds.new(store)
    query = Query(world, publish, moods([]), batches=[[[1, 25], [50]]])
    query.run(1)
    assert (query.logged, query.marks()) == (0, set())
    assert sum(world.by_manifests().values()) == 3

    query.run(1)
    assert (query.logged, query.marks()) == (1, {"1970-01-01", "1970-01-02"})
    assert sum(world.by_listing().values()) == 3


@EACH_STORE
@EACH_WAY
@pytest.mark.parametrize("fails", [False, True])
def test_all_partitions_of_a_batch_write_are_complete(
    worlds: Worlds, store: str, publish: str, *, fails: bool
) -> None:
    """If it fails, none is. With `txnAppId` there are later writes, and the watermark decides."""
    global hook_moods  # noqa: PLW0603 - as above
    hook_moods = moods([0, 3 if fails else 0])
    world = worlds.new(store)
    query = Query(world, publish, moods([]))
    epochs = [Epoch(None, "w1", None), Epoch("app", "w2", 7, is_transaction=True)]
    for number, epoch in enumerate(epochs):
        writer = query._destination().create_writer(
            SCHEMA, Origin("files", epoch.query, epoch.run, epoch.batch, 0, 1)
        )
        writer.write(rows([None, 50 * number, 50 * number + 30], 10 * number))
        prepared = writer.prepare_commit()
        made = EpochCommit(query._destination(), epoch, retrier=retrier(), backoff=BACKOFF)
        if fails and not number:
            with pytest.raises(CommitError, match="no such table"):
                made.commit(prepared)
            made.abort(prepared)
            assert sum(world.by_listing().values()) == 0
        else:
            made.commit(prepared)
        assert (
            query.marks()
            == [
                set() if fails else {"1970-01-01", "1970-01-02"},
                {"1970-01-03"} if fails else {"1970-01-01", "1970-01-02", "1970-01-03"},
            ][number]
        )


def test_a_query_may_begin_to_mark(worlds: Worlds) -> None:
    """Manifests of before have no timestamps, and are read as they are."""
    world = worlds.new("local")
    old = Manifest("query-1", 0, "run-0", ())
    assert b"latest" not in old.to_json()
    assert Manifest.from_json(old.to_json(), "key") == old
    new = Manifest("query-1", 0, "run-0", (), None, 5)
    assert Manifest.from_json(new.to_json(), "key") == new
    world.store().put(world.layout.manifest("query-1", 0), old.to_json())

    query = Query(world, "manifest", moods([]), batches=[[[], []], [[1, 30], [2]]], logged=1)
    query.run(2)
    assert query.marks() == {"1970-01-01"}


BERLIN = ZoneInfo("Europe/Berlin")
DAY = 24.0 * HOUR


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("values", "time", "interval", "zone", "end"),
    [
        ({"day": "2026-11-21"}, None, DAY, timezone.utc, utc(2026, 11, 22)),
        ({"day": "20261121"}, "{day}", DAY, timezone.utc, utc(2026, 11, 22)),
        ({"day": "2026-11-21", "Hour": "7"}, "{Day} {hour}:00", HOUR, timezone.utc, utc(2026, 11, 21, 8)),
        ({"y": "2026", "m": "2", "d": "3"}, "{y}-{m}-{d}", DAY, timezone.utc, utc(2026, 2, 4)),
        ({"at": "2026-11-21T07:15:30", "c": "DE"}, "{at}", 1.0, timezone.utc, utc(2026, 11, 21, 7, 15, 31)),
        ({"day": "2026-11-21"}, None, DAY, BERLIN, utc(2026, 11, 21, 23)),
        ({"day": "2026-10-25"}, None, DAY, BERLIN, utc(2026, 10, 25, 23)),  # 25 hours
        ({"day": "2026-03-29"}, None, DAY, BERLIN, utc(2026, 3, 29, 22)),  # 23 hours
        ({"day": "2026-10-25", "hour": "2"}, "{day} {hour}:00", HOUR, BERLIN, utc(2026, 10, 25, 2)),  # twice
        ({"day": None}, None, DAY, timezone.utc, None),
        ({"day": "+12026-01-31"}, None, DAY, timezone.utc, None),
        ({"day": "9999-12-31"}, None, DAY, timezone.utc, None),
        ({"day": "2026-02-30"}, None, DAY, timezone.utc, None),
        ({"day": "2026-11-21", "hour": None}, "{day} {hour}:00", HOUR, timezone.utc, None),
        ({"day": "٢٠٢٦-11-21"}, None, DAY, timezone.utc, None),
        ({"other": "2026-11-21"}, None, DAY, timezone.utc, None),
    ],
)
def test_the_end_of_a_partition(
    values: dict[str, str | None], time: str | None, interval: float, zone: Any, end: datetime | None
) -> None:
    """On the clock of the time zone; None if the values are no time."""
    made = Completion("at", ("day",), time=time, interval=interval, zone=zone)

    found = made.end(values)
    assert (None if found is None else EPOCH + timedelta(microseconds=found)) == end


def test_values_that_are_no_time_are_reported_once(worlds: Worlds, caplog: pytest.LogCaptureFixture) -> None:
    """Their partitions are never complete, and are not kept."""
    world = worlds.new("local")
    query = Query(world, "manifest", moods([]), batches=[[[None], [1]], [[None], [30]]])
    with caplog.at_level(logging.WARNING, "sluice.destinations.files.partition_commit"):
        query.run(2)

    (message,) = caplog.messages
    assert "Day=__HIVE_DEFAULT_PARTITION__/ is never complete" in message
    assert query.marks() == {"1970-01-01"}
    assert b"HIVE" not in world.files()["_sluice/query-1/partitions"]


BY_DAY = {"partitionBy": "day", "watermarkColumn": "at", "successFile": "_SUCCESS"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"successFile": "SUCCESS"},
            "'SUCCESS': allowed is a name such as _SUCCESS, which begins with _",
        ),
        ({"successFile": "_a/b"}, "option 'successFile' is '_a/b': allowed is a name such as _SUCCESS"),
        ({"successFile": ".."}, "option 'successFile' is '..': allowed is a name such as _SUCCESS"),
        ({"watermarkColumn": None}, "option 'watermarkColumn' is required with 'successFile'"),
        (
            {"successFile": None},
            "option 'watermarkColumn' is 'at': only with 'successFile' or",
        ),
        ({"partitionBy": None}, "option 'successFile' is '_SUCCESS': only with 'partitionBy'"),
        ({"partitionBy": "day,hour"}, "option 'partitionTime' is required unless 'partitionBy' is one date"),
        ({"partitionTime": "{day}"}, "option 'partitionInterval' is required with 'partitionTime'"),
        (
            {"partitionTime": "{day} {hour}:00", "partitionInterval": "1h"},
            "option 'partitionTime' is '{day} {hour}:00': 'partitionBy' has no column 'hour'",
        ),
        (
            {"partitionTime": "day"},
            "option 'partitionTime' is 'day': allowed is a date or a time",
        ),
        ({"partitionTime": "{day"}, "option 'partitionTime' is '{day': allowed is a date or a time"),
        ({"partitionTimeZone": "Berlin"}, "option 'partitionTimeZone' is 'Berlin': allowed is a name of"),
        ({"partitionTimeZone": "/etc"}, "option 'partitionTimeZone' is '/etc': allowed is a name of"),
        ({"partitionHook": "hook"}, "option 'partitionHook' is 'hook': allowed is package.module:Name"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str | None], message: str) -> None:
    """Before the query starts."""
    given = {"destination": "files", "path": "/data", **BY_DAY, **options}
    with pytest.raises(OptionError) as caught:
        read_sink({key: value for key, value in given.items() if value is not None})

    assert message in str(caught.value)


def made(path: Path, **options: str) -> Any:
    return read_sink({"destination": "files", "path": str(path), **BY_DAY, **options}).destination


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"day": DateType()}, {}, "option 'watermarkColumn': 'at' is not a column: allowed is timestamp"),
        (
            {"at": TimestampNTZType(), "day": DateType()},
            {},
            "option 'watermarkColumn': 'at' is timestamp_ntz: allowed is timestamp",
        ),
        (
            {"at": TimestampType(), "day": StringType()},
            {},
            "option 'partitionTime' is required: column 'day' is string, and only a date",
        ),
        ({"At": TimestampType(), "Day": DateType()}, {}, None),
        (
            {"at": TimestampType(), "day": StringType()},
            {"partitionTime": "{DAY}", "partitionInterval": "24h", "partitionTimeZone": "Europe/Berlin"},
            None,
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, str], message: str | None
) -> None:
    """Where the query starts."""
    schema = StructType([StructField(name, each) for name, each in {"id": LongType(), **columns}.items()])
    destination = made(tmp_path, **options)
    origin = Origin("files", "q", "r", 0, 0, 0)
    if message is None:
        destination.create_writer(schema, origin)
        return
    with pytest.raises(OptionError) as caught:
        destination.create_writer(schema, origin)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:hook", "cannot be loaded"),
        ("test_partition_commit:HOUR", "cannot be called"),
        ("test_partition_commit:coroutine", "it is async def, and would not run"),
    ],
)
def test_a_hook_that_cannot_run_is_refused(tmp_path: Path, name: str, message: str) -> None:
    """By the driver, where the query starts; tasks need not have it."""
    destination = made(tmp_path, partitionHook=name)
    destination.create_writer(SCHEMA, Origin("files", "q", "r", 0, 0, 0)).close()

    with pytest.raises(OptionError, match=f"option 'partitionHook' is '{name}': .*{message}"):
        destination.check()


async def coroutine(_url: str, _values: Any) -> None:
    """Nobody awaits it."""


def test_markers_are_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For `committed_files`, `sluice files` and symlink manifests; they stay when files expire."""
    path = tmp_path / "events"
    for batch, hour in enumerate((1, 30, 60)):
        destination = made(path, publish="symlink", fileFormat="jsonl")
        epoch = Epoch("q", "run", batch)
        writer = destination.create_writer(SCHEMA, Origin("files", "q", "run", batch, 0, 0))
        writer.write(rows([hour], batch))
        EpochCommit(destination, epoch, retrier=retrier(), backoff=BACKOFF).commit(writer.prepare_commit())

    marks = sorted(each.parent.name for each in path.rglob("_SUCCESS"))
    assert marks == ["Day=1970-01-01", "Day=1970-01-02"]
    assert all(each.read_bytes() == b"" for each in path.rglob("_SUCCESS"))
    assert [each.endswith(".jsonl") for each in sluice.committed_files(str(path))] == [True] * 3
    assert main(["files", "list", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["files"]), shown["uncommitted"]) == (3, [])
    assert main(["files", "expire", str(path), "--before", "2100-01-01", "--execute", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deletedFiles"] == 3
    assert sorted(each.parent.name for each in path.rglob("_SUCCESS")) == marks
    lists = Counter(each.read_text() for each in path.rglob("manifest"))
    assert lists == {"": 3}


def test_a_day_that_a_date_column_writes_is_read(worlds: Worlds) -> None:
    """The values of a partition reach the hook unescaped, null as None."""
    world = worlds.new("local")
    schema = StructType([*SCHEMA.fields, StructField("land", StringType())])
    completion = Completion("at", ("land", "day"), hook=HOOK, time="{day}")
    destination = world.destination(partition_by=("land", "day"), completion=completion)
    writer = destination.create_writer(schema, Origin("files", None, "w", None, 0, 0))
    batch = rows([1, 1, 1], 0)
    writer.write(batch.append_column("land", pa.array(["a/b=c%41 é", None, "DE"])))
    commit = EpochCommit(destination, Epoch(None, "w", None), retrier=retrier(), backoff=BACKOFF)
    commit.commit(writer.prepare_commit())

    found = [values for _, values in told]
    day = date(1970, 1, 1).isoformat()
    assert sorted(found, key=str) == sorted(
        [{"land": land, "Day": day} for land in ("a/b=c%41 é", None, "DE")], key=str
    )
