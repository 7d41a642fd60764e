"""What Spark calls on the source and its readers, without a Spark session."""

from __future__ import annotations

import contextlib
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, InputPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluice.channels.channel import Address
from sluice.errors import OptionError, SluiceError
from sluice.kinesis.log.record_batches import ARROW_SCHEMA
from sluice.kinesis.options.config import SourceConfig
from sluice.kinesis.planner import coordinator
from sluice.kinesis.planner.coordinator import SourceCoordinator
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.source import SCHEMA, KinesisSource
from sluice.kinesis.task import cursors
from sluice.source.contracts import ReadTask
from sluice.source.model.offsets import HORIZON, After, Offsets, SplitRange
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId
from sluice.source.reports.task_reports import ReportAddress, TaskReports
from sluice.source.settings import NO_LIMITS, Limits
from sluice.spark import source_reader
from sluice.spark.data_source import _for_spark
from sluice.spark.source import KinesisDataSource
from sluice.spark.source_reader import HAS_ADMISSION_CONTROL, StreamReader

OPTIONS = {"streamName": "clicks", "region": "us-east-1", "startingPosition": "TRIM_HORIZON"}
SPARK_SCHEMA = StructType(
    [
        StructField("data", BinaryType()),
        StructField("partitionKey", StringType()),
        StructField("sequenceNumber", StringType()),
        StructField("subSequenceNumber", LongType()),
        StructField("approximateArrivalTimestamp", TimestampType()),
        StructField("streamName", StringType()),
        StructField("shardId", StringType()),
    ]
)
SHARD = SplitId("clicks", "shardId-000000000000")

needs_admission_control = pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="PySpark has it from 4.2 on")


def source(**options: str) -> DataSource:
    return KinesisDataSource(CaseInsensitiveDict(OPTIONS | options))


def at(number: int) -> Offsets:
    """Offsets right after a record of one shard."""
    return Offsets({SHARD: After(str(number))}, {}, frozenset({"clicks"}))


class FakeEnumerator:
    """Plans batches of ten numbers up to `tip`."""

    def __init__(self, tip: int = 25) -> None:
        self.tip = tip
        self._newest = at(tip)
        self.asked: list[tuple[Offsets, Limits]] = []  # the arguments of every `advance`
        self.initials = 0  # how often `initial` was called
        self.stops_at_available = False
        self.is_closed = False
        self.millis_behind_latest: Mapping[SplitId, int] = {SHARD: 1500, SplitId("views", "b"): 0}

    def initial(self) -> Offsets:
        self.initials += 1
        return at(0)

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        self.asked.append((start, limits))
        number = cast("After", start.position(SHARD)).sequence
        return start if number >= self.tip else at(min(self.tip, number + 10))

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[SplitRange]:
        return start.ranges_to(end)

    def newest(self, start: Offsets) -> Offsets:
        del start
        return self._newest

    def stop_at_available(self) -> None:
        self.stops_at_available = True

    def close(self) -> None:
        self.is_closed = True


class FakeCoordinator:
    """A `SourceCoordinator` without a service."""

    def __init__(self, enumerator: FakeEnumerator) -> None:
        self.enumerator = enumerator
        self.restored: list[Offsets] = []  # the argument of every `restore`
        self.assignment = FanOutAssignment({"clicks": "arn:consumer"})  # what tasks are given
        self.reads = ReadFigures()
        # reads, reports: what tasks have read, and where they report it, if `takes_reports`
        self.reports = TaskReports(self.reads)
        self.takes_reports = False
        self.posts = 0  # how often listeners could have been notified

    def begin_batch(self, tasks: int) -> ReportAddress | None:
        return self.reports.begin_batch(tasks) if self.takes_reports else None

    def report(self) -> dict[str, Any]:
        self.reports.receive()
        return {"tasks": self.reports.tasks, "reportedTasks": self.reports.reported}

    def post_report(self) -> None:
        self.posts += 1

    def restore(self, offsets: Offsets) -> None:
        self.restored.append(offsets)

    def assign(self, ranges: Sequence[SplitRange]) -> FanOutAssignment:
        del ranges
        return self.assignment

    def stop_at_available(self) -> None:
        self.enumerator.stop_at_available()

    def close(self, *, is_disconnected: bool) -> None:
        self.is_disconnected = is_disconnected
        self.enumerator.close()
        self.reports.close()


def plain_reader(enumerator: FakeEnumerator, **options: str) -> StreamReader:
    """The reader for Spark 4.0 and 4.1, whichever is installed."""
    made = cast("StreamReader", source(**options).streamReader(SPARK_SCHEMA))
    reader = StreamReader(made._source)
    reader._coordinator = cast("SourceCoordinator", FakeCoordinator(enumerator))
    return reader


def admitting_reader(enumerator: FakeEnumerator, **options: str) -> Any:
    """The reader for Spark 4.2 and later."""
    reader: Any = source(**options).streamReader(SPARK_SCHEMA)
    reader._coordinator = FakeCoordinator(enumerator)
    return reader


# --- the format ---------------------------------------------------------------------------------------


def test_the_schema_is_that_of_the_record_batches() -> None:
    """Spark checks the names, order and types of Arrow's fields, so both declarations say the same."""
    assert source().schema() == SCHEMA.replace(" timestamp,", " timestamp_ltz,")
    assert [field.split() for field in SCHEMA.split(", ")] == [
        [field.name, field.dataType.simpleString().replace("bigint", "long")] for field in SPARK_SCHEMA
    ]
    assert pa.schema([(field.name, _arrow(field)) for field in SPARK_SCHEMA]) == ARROW_SCHEMA


def test_timestamps_are_instants_whatever_the_session_says() -> None:
    """spark.sql.timestampType says what "timestamp" means; columns and rows would differ."""
    assert "approximateArrivalTimestamp timestamp_ltz, " in source().schema()
    assert _for_spark("timestamp long, `a b` TIMESTAMP, c  timestamp") == (
        "timestamp long, `a b` timestamp_ltz, c  timestamp_ltz"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s struct<a: timestamp, timestamp: long>", "s struct<a: TS, timestamp: long>"),
        ("s STRUCT<timestamp:timestamp,a:array< timestamp >>", "s STRUCT<timestamp:TS,a:array< TS >>"),
        ("timestamp timestamp, b struct<c timestamp>", "timestamp TS, b struct<c TS>"),
        ("m map<timestamp, map<string,timestamp>>", "m map<TS, map<string,TS>>"),
        (
            "t timestamp NOT NULL, u timestamp COMMENT 'a timestamp'",
            "t TS NOT NULL, u TS COMMENT 'a timestamp'",
        ),
        ("`a timestamp` timestamp, `timestamp` long", "`a timestamp` TS, `timestamp` long"),
        ("x timestamp_ntz, y timestamp_ltz", "x timestamp_ntz, y timestamp_ltz"),
    ],
)
def test_timestamps_inside_of_columns_are_instants_as_well(text: str, expected: str) -> None:
    """Only Spark's JVM has a parser for types as text, and this process cannot ask it."""
    assert _for_spark(text) == expected.replace("TS", "timestamp_ltz")


def _arrow(field: StructField) -> pa.DataType:
    """Spark's own mapping. That of timestamps depends on the session; workers always have UTC."""
    if isinstance(field.dataType, TimestampType):
        return pa.timestamp("us", "UTC")
    return to_arrow_type(field.dataType)


@pytest.mark.parametrize(
    "schema",
    [
        StructType(list(reversed(SPARK_SCHEMA.fields))),
        StructType(SPARK_SCHEMA.fields[:-1]),
        StructType([StructField("data", StringType()), *SPARK_SCHEMA.fields[1:]]),
        StructType([*SPARK_SCHEMA.fields, StructField("more", StringType())]),
    ],
    ids=["order", "fewer", "type", "more"],
)
def test_another_schema_is_refused(schema: StructType) -> None:
    """``.schema(...)`` cannot change what the source gives; rows would be read with wrong types."""
    for make in (source().reader, source().streamReader):
        with pytest.raises(OptionError, match="the schema can't be chosen; it is always: data binary"):
            make(schema)


@pytest.mark.parametrize("place", range(len(SPARK_SCHEMA.fields)))
def test_a_schema_without_nulls_is_refused(place: int) -> None:
    """The query would fail at the first row that has a null there, and at each restart."""
    fields = [StructField(f.name, f.dataType, nullable=n != place) for n, f in enumerate(SPARK_SCHEMA)]
    for make in (source().reader, source().streamReader):
        with pytest.raises(OptionError, match="columns can't be NOT NULL"):
            make(StructType(fields))


def test_the_shim_imports_neither_the_sdk_nor_the_readers() -> None:
    """Spark imports it in every session, only to learn the format's name."""
    code = (
        "import sys, pyspark_kinesis_efo as shim\n"
        "assert [n for n in vars(shim) if n.startswith('D')] == ['DefaultSource']\n"
        "assert shim.DefaultSource.name() == 'kinesis-efo'\n"
        "assert not {'boto3', 'botocore', 'sluice.source', 'sluice.kinesis'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- partitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shards", "per_task", "sizes"),
    [(0, 16, []), (1, 16, [1]), (16, 16, [16]), (17, 16, [9, 8]), (5, 1, [1] * 5), (7, 3, [3, 2, 2])],
)
def test_ranges_are_dealt_out_to_as_few_tasks_as_possible(
    shards: int, per_task: int, sizes: list[int]
) -> None:
    """No task has more than ``shardsPerTask`` or none, and every range is dealt out once."""
    ids = [SplitId("clicks", f"shardId-{number:012}") for number in range(shards)]
    end = Offsets({split: After("7") for split in ids}, {}, frozenset({"clicks"}))
    start = Offsets({}, {}, frozenset({"clicks"}))
    reader = plain_reader(FakeEnumerator(), shardsPerTask=str(per_task))

    partitions = reader.partitions(start.to_json(), end.to_json())

    dealt = [ranges(partition) for partition in partitions]
    assert [len(part) for part in dealt] == sizes
    assert sorted(r.split for part in dealt for r in part) == ids
    assert all(r.start == HORIZON and r.end == After("7") for part in dealt for r in part)


def test_a_task_finds_agents_on_the_driver_host_where_executors_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark tells tasks its address, and not the planning process."""
    seen: list[FanOutAssignment] = []

    monkeypatch.setattr(cursors, "FanOutCursors", lambda _config, given, _: seen.append(given))
    monkeypatch.setattr(source_reader, "driver_host", lambda: "10.0.0.1")
    beside, on_worker = (
        Address("", 40_000, b"secret", b"start"),
        Address("10.0.0.7", 40_001, b"secret", b"other"),
    )
    agents = {SHARD: beside, SplitId("clicks", "b"): on_worker}
    assignment = FanOutAssignment({"clicks": "arn"}, agents, hub=beside)

    reader = plain_reader(FakeEnumerator(), consumerName="app")
    list(reader.read(source_reader.RangesPartition((), assignment)))

    found = Address("10.0.0.1", 40_000, b"secret", b"start")
    assert seen[0].agents == {SHARD: found, SplitId("clicks", "b"): on_worker}
    assert seen[0].hub == found


def partition_bytes(shards: int) -> int:
    """The most that one of two shards' tasks is sent, in a batch of `shards` shards of as many streams."""
    ids = [SplitId(f"stream-{number:05}", f"shardId-{number:012}") for number in range(shards)]
    streams = frozenset(split.stream for split in ids)
    reader = plain_reader(FakeEnumerator(), shardsPerTask="2")
    agents = {split: Address("10.0.0.1", 40_000, bytes(32), bytes(16)) for split in ids}
    arns = {stream: f"arn:{stream}" for stream in streams}
    cast("FakeCoordinator", reader._coordinator).assignment = FanOutAssignment(arns, agents)
    end = Offsets({split: After("7") for split in ids}, {}, streams)
    partitions = reader.partitions(Offsets({}, {}, streams).to_json(), end.to_json())
    return max(len(pickle.dumps(partition)) for partition in partitions)


def test_a_partition_grows_with_its_own_shards_alone() -> None:
    """Else the bytes of a batch grow with the square of its shards, to hundreds of megabytes."""
    assert partition_bytes(256) == partition_bytes(2)


def test_logged_offsets_tell_which_consumers_an_earlier_run_registered() -> None:
    """After a restart nothing else does."""
    reader = plain_reader(FakeEnumerator())
    coordinator = cast("FakeCoordinator", reader._coordinator)

    reader.latestOffset(at(0).to_json())
    reader.partitions(at(0).to_json(), at(10).to_json())

    assert coordinator.restored == [at(0), at(10)]


def ranges(partition: InputPartition) -> tuple[SplitRange, ...]:
    """The ranges of a partition that Spark has pickled."""
    carried: Any = pickle.loads(pickle.dumps(partition))
    found: tuple[SplitRange, ...] = carried.ranges
    return found


def test_a_batch_that_is_read_again_has_the_same_ranges() -> None:
    """After a restart the first call is ``partitions`` with the logged offsets."""
    pair = at(3).to_json(), at(9).to_json()

    first, second = (plain_reader(FakeEnumerator()).partitions(*pair) for _ in range(2))

    assert [ranges(partition) for partition in first] == [ranges(partition) for partition in second]


@pytest.mark.parametrize("mode", ["batch", "stream"])
def test_a_task_reads_its_ranges(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader gives it the options, the partition its ranges and the fan-out assignment."""
    seen: list[tuple[SourceConfig, ReadTask]] = []

    def read_task(source: KinesisSource, given: ReadTask) -> Any:
        seen.append((source.config, given))
        return iter(())

    monkeypatch.setattr(KinesisSource, "read_task", read_task)
    made: Any = source().reader(SPARK_SCHEMA) if mode == "batch" else source().streamReader(SPARK_SCHEMA)
    wanted = SplitRange(SHARD, After("3"), After("9"))

    copy = pickle.loads(pickle.dumps(made))
    assignment = FanOutAssignment({"clicks": "arn:consumer"})
    frozen: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        source_reader, "freeze_loaded_objects", lambda *, collect: frozen.append((bool(seen), collect))
    )
    list(copy.read(source_reader.RangesPartition((wanted,), assignment)))

    assert seen == [(made._source.config, ReadTask((wanted,), assignment))]
    assert frozen == [(True, False)]  # when the SDK is loaded


def test_a_batch_read_of_nothing_has_one_empty_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would replace an empty list by a dummy partition."""
    monkeypatch.setattr(coordinator, "plan_bounded_read", lambda _config: [])
    reader = source().reader(SPARK_SCHEMA)

    (partition,) = reader.partitions()

    assert list(reader.read(partition)) == []


# --- pickling -----------------------------------------------------------------------------------------


def test_a_pickled_reader_is_plain_data() -> None:
    """Spark sends it to the tasks; the coordinator stays in its process."""
    reader = plain_reader(FakeEnumerator(), awsAccessKeyId="AKIDEXAMPLE", awsSecretAccessKey="s3cret")
    reader.latestOffset(at(0).to_json())

    copy: Any = pickle.loads(pickle.dumps(reader))

    assert copy._coordinator is None
    assert copy._next_start is None
    assert copy._source.config == cast("KinesisSource", reader._source).config
    assert reader._coordinator is not None
    assert "s3cret" not in repr(copy._source.config)


def test_stop_closes_the_enumerator() -> None:
    """And so its threads."""
    enumerator = FakeEnumerator()
    plain_reader(enumerator).stop()

    assert enumerator.is_closed


@pytest.mark.parametrize(
    ("problem", "is_disconnected"), [(EOFError(), True), (BrokenPipeError(), True), (ValueError(), False)]
)
def test_stop_tells_a_closed_connection_from_an_error(problem: Exception, *, is_disconnected: bool) -> None:
    """Spark calls it while an exception is raised. If that is a closed connection, SIGTERM may follow."""
    enumerator = FakeEnumerator()
    reader = plain_reader(enumerator)
    with contextlib.suppress(type(problem)):
        try:
            raise problem
        finally:
            reader.stop()

    assert enumerator.is_closed
    assert cast("Any", reader._coordinator).is_disconnected is is_disconnected


# --- offsets, as Spark 4.0 and 4.1 ask for them -------------------------------------------------------


def test_without_a_start_a_batch_starts_where_the_last_one_ended() -> None:
    """Spark 4.0 and 4.1 do not say where a batch starts."""
    enumerator = FakeEnumerator(tip=25)
    reader = plain_reader(enumerator)
    offset = reader.initialOffset()
    ends = []
    for _ in range(4):
        end = reader.latestOffset()
        if end != offset:
            reader.partitions(offset, end)
        ends.append(Offsets.from_json(end))
        offset = end

    assert ends == [at(10), at(20), at(25), at(25)]
    assert [start for start, _ in enumerator.asked] == [at(0), at(10), at(20), at(25)]


def test_without_a_start_a_batch_that_was_not_read_is_planned_again() -> None:
    """Spark may ask for an end twice before it makes a batch; no record must be skipped."""
    reader = plain_reader(FakeEnumerator())

    assert reader.latestOffset() == reader.latestOffset() == at(10).to_json()


def test_without_a_start_a_restarted_query_resumes_from_the_last_logged_batch() -> None:
    """The first call is ``partitions``: with that batch, or with an empty one if it was committed."""
    idle, interrupted = plain_reader(FakeEnumerator()), plain_reader(FakeEnumerator())
    idle.partitions(at(10).to_json(), at(10).to_json())
    interrupted.partitions(at(0).to_json(), at(10).to_json())

    assert Offsets.from_json(idle.latestOffset()) == at(20)
    assert Offsets.from_json(interrupted.latestOffset()) == at(20)


def test_without_admission_control_the_options_limit_every_batch() -> None:
    """Spark 4.0 and 4.1 pass no limit."""
    enumerator = FakeEnumerator()
    reader = plain_reader(
        enumerator, maxRecordsPerTrigger="5", maxBytesPerTrigger="1MiB", maxTimeSpanPerTrigger="2s"
    )
    reader.latestOffset()
    reader.latestOffset()

    limits = Limits(5, 2**20, 2_000_000)
    assert [replace(asked, may_be_last=False) for _, asked in enumerator.asked] == [limits, limits]


def test_without_admission_control_the_first_batch_of_a_run_may_be_its_last() -> None:
    """Spark 4.0 and 4.1 do not say that the trigger is ``AvailableNow`` or ``Once``."""
    enumerator = FakeEnumerator()
    reader = plain_reader(enumerator)
    reader.partitions(at(0).to_json(), at(10).to_json())  # a batch that was logged and not committed

    for _ in range(3):
        reader.latestOffset()

    assert [limits.may_be_last for _, limits in enumerator.asked] == [True, False, False]


# --- offsets, as Spark 4.2 and later ask for them -----------------------------------------------------


@pytest.mark.parametrize(
    "make", [plain_reader, pytest.param(admitting_reader, marks=needs_admission_control)]
)
def test_with_a_start_the_batch_starts_there(make: Any) -> None:
    """Independent of earlier plans of the reader."""
    enumerator = FakeEnumerator()
    reader = make(enumerator)
    reader.partitions(at(0).to_json(), at(3).to_json())

    assert Offsets.from_json(reader.latestOffset(at(5).to_json(), None)) == at(15)
    assert enumerator.asked[-1][0] == at(5)
    assert enumerator.initials == 0


@pytest.mark.parametrize(
    "make", [plain_reader, pytest.param(admitting_reader, marks=needs_admission_control)]
)
def test_nothing_new_is_the_start_as_it_came(make: Any) -> None:
    """Spark compares the JSON. If an unknown key were lost, it would run an empty batch."""
    start = {**at(25).to_json(), "from a later release": 1}

    assert make(FakeEnumerator(tip=25)).latestOffset(start, None) == start


@needs_admission_control
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("ReadMaxRows", {"max_rows": 2**63 - 1})),
        ({"maxRecordsPerTrigger": "500"}, ("ReadMaxRows", {"max_rows": 500})),
        ({"maxBytesPerTrigger": "5MiB"}, ("ReadMaxBytes", {"max_bytes": 5 * 2**20})),
        (
            {"maxRecordsPerTrigger": "500", "maxBytesPerTrigger": "5MiB"},
            ("ReadMaxRows", {"max_rows": 500}),
        ),
        ({"maxTimeSpanPerTrigger": "5s"}, ("ReadMaxRows", {"max_rows": 2**63 - 1})),
    ],
)
def test_spark_always_gets_a_read_limit(
    options: dict[str, str], expected: tuple[str, dict[str, int]]
) -> None:
    """Never ``ReadAllAvailable``, which so is a sign of ``Trigger.Once``."""
    limit = admitting_reader(FakeEnumerator(), **options).getDefaultReadLimit()

    assert (type(limit).__name__, vars(limit)) == expected


@needs_admission_control
def test_a_trigger_may_lift_the_limits() -> None:
    """``Trigger.Once`` does, and its batch is the last one; all others pass the default read limit."""
    module: Any = source_reader
    enumerator = FakeEnumerator()
    reader = admitting_reader(enumerator, maxRecordsPerTrigger="5", maxTimeSpanPerTrigger="1s")

    reader.latestOffset(at(0).to_json(), module.ReadAllAvailable())
    reader.latestOffset(at(0).to_json(), reader.getDefaultReadLimit())

    assert [limits for _, limits in enumerator.asked] == [
        Limits(may_be_last=True),
        Limits(5, None, 1_000_000),
    ]


@needs_admission_control
def test_progress_has_the_newest_offset_and_the_lag_of_every_shard() -> None:
    """By stream and shard. There is no report before the first batch is planned."""
    reader = admitting_reader(FakeEnumerator(tip=25))
    before = reader.reportLatestOffset()
    reader.latestOffset(at(0).to_json(), None)
    reported = reader.reportLatestOffset()

    assert before is None
    assert Offsets.from_json(reported) == at(25)
    assert reported["tasks"] == 0


@needs_admission_control
def test_a_report_is_made_once_a_second_while_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks some 90 times a second, and shows one in ten seconds. A new batch gets a new report."""
    now = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reader = admitting_reader(FakeEnumerator(tip=25))
    made: list[int] = []

    def report() -> dict[str, int]:
        made.append(1)
        return {"made": len(made)}

    reader._coordinator.report = report
    start = at(0).to_json()
    for batch in range(3):
        end = reader.latestOffset(start, None)
        assert reader.reportLatestOffset()["made"] == len(made) == batch + 1
        reader.partitions(start, end)
        start = json.loads(json.dumps(end))
    for _ in range(90):
        assert reader.latestOffset(json.loads(json.dumps(start)), None) == start
        reader.reportLatestOffset()["made"] = 0  # what Spark does with it is its own affair
        now += 0.9 / 90
    assert len(made) == 4
    assert reader.reportLatestOffset()["made"] == 4
    now += 0.2
    assert reader.reportLatestOffset()["made"] == 5
    assert pickle.loads(pickle.dumps(reader))._reported is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_task_reports_what_it_has_read(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """To where its partition says, pickled and back. A failed task has read, and has not ended its part."""
    reader = plain_reader(FakeEnumerator())
    coordinator = cast("Any", reader._coordinator)
    coordinator.takes_reports = True
    partitions = reader.partitions(at(0).to_json(), at(10).to_json())

    def read_task(_source: KinesisSource, given: ReadTask) -> Any:
        given.figures.count_page(SHARD, 10, 1000, is_pushed=True)
        yield from ()
        if fails:
            raise SluiceError("no")

    monkeypatch.setattr(KinesisSource, "read_task", read_task)
    with contextlib.suppress(SluiceError):
        list(reader.read(pickle.loads(pickle.dumps(partitions[0]))))

    assert coordinator.report() == {"tasks": 1, "reportedTasks": int(not fails)}
    assert coordinator.reads.splits() == {SHARD: SplitFigures(pushed=10, bytes=1000)}
    coordinator.reports.close()


def test_the_reader_has_the_methods_that_the_installed_spark_calls() -> None:
    """And no others."""
    reader = source().streamReader(SPARK_SCHEMA)

    assert hasattr(reader, "prepareForTriggerAvailableNow") is HAS_ADMISSION_CONTROL
    assert hasattr(type(reader), "reportLatestOffset") is HAS_ADMISSION_CONTROL


@pytest.mark.parametrize("make", [plain_reader, admitting_reader])
def test_listeners_get_a_report_at_each_trigger(make: Any) -> None:
    """Also where nothing is new: the service may refuse all reads, and Spark takes the query for idle."""
    if make is admitting_reader and not HAS_ADMISSION_CONTROL:
        pytest.skip("PySpark has it from 4.2 on")
    reader = make(FakeEnumerator(tip=0))
    reader.latestOffset(at(0).to_json(), None)
    reader.latestOffset(at(0).to_json(), None)

    assert reader._coordinator.posts == 2


def test_commit_keeps_nothing() -> None:
    """The offset log keeps all state."""
    reader = plain_reader(FakeEnumerator())
    before = dict(reader.__dict__)
    reader.commit(at(10).to_json())

    assert reader.__dict__ == before


def test_a_batch_reader_refuses_what_only_a_stream_has() -> None:
    """At ``load()`` Spark does not say which of the two it will be; when it reads, it does."""
    limited = source(maxRecordsPerTrigger="1")
    assert limited.schema() == source().schema()
    limited.streamReader(SPARK_SCHEMA)
    with pytest.raises(OptionError, match="option 'maxRecordsPerTrigger' is for streaming reads only"):
        limited.reader(SPARK_SCHEMA)
