"""The source through Spark: where reads start and end, what a batch holds, and that faults change no row."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
from aws_kinesis_agg.aggregator import RecordAggregator
from pyspark.sql import Row, SparkSession

from integration.model import LOST_ANSWER, SECOND
from integration.model.sending import WireFault
from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import WAIT, logged_offsets, read, read_stream, start
from integration.support.servers import Server
from integration.support.spark import SPARK_VERSION

HAS_ADMISSION_CONTROL = SPARK_VERSION >= (4, 2)
needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="PySpark has admission control from 4.2 on"
)

BOTH = pytest.mark.usefixtures("publisher")


class Known(NamedTuple):
    """A record as the service has it."""

    stream: str
    shard: str
    number: int
    arrival: float
    data: bytes
    written: str = ""  # the number as the service writes it

    @classmethod
    def of(cls, row: Row) -> Known:
        arrival = row.approximateArrivalTimestamp.replace(tzinfo=timezone.utc).timestamp()
        number = row.sequenceNumber
        return cls(row.streamName, row.shardId, int(number), arrival, bytes(row.data), number)


def known(service: ModelStreams, *names: str) -> list[Known]:
    return [
        Known(stream, each.shard, int(number), each.arrival / SECOND, each.data, number)
        for stream in names
        for each in service.model.oracle.records(stream)
        for number in [each.sequence_number]
    ]


def of(rows: Iterable[Row]) -> list[Known]:
    """Rows as `Known`, sorted. A duplicate record occurs twice."""
    return sorted(map(Known.of, rows))


def records(count: int, start: int = 0, *, size: int = 20) -> list[tuple[str, bytes]]:
    """(partition key, data) of records that all differ."""
    return [(f"key-{n % 53:02}", str(n).zfill(size).encode()) for n in range(start, start + count)]


# --- where reading starts and ends --------------------------------------------------------------------


class Waves(NamedTuple):
    """Two streams with records of three instants, more than a second apart."""

    first: str
    second: str
    records: list[Known]
    instants: list[float]

    def since(self, instant: float) -> list[Known]:
        return sorted(record for record in self.records if record.arrival >= instant)

    def before(self, instant: float) -> list[Known]:
        return sorted(record for record in self.records if record.arrival < instant)


@pytest.fixture(scope="module")
def waves(module_service: ModelStreams) -> Waves:
    service = module_service
    first, second = service.create(2), service.create(1)
    for wave in range(3):
        for stream in (first, second):
            service.put(stream, records(40, start=100 * wave))
        service.clock.advance(seconds=2.1)
    found = known(service, first, second)
    waves = [[record.arrival for record in found if int(record.data) // 100 == wave] for wave in range(3)]
    instants = [float(math.floor(min(wave))) for wave in waves]
    assert len(found) == 240
    assert all(max(wave) < instant for wave, instant in zip(waves, instants[1:], strict=False))
    return Waves(first, second, found, instants)


def iso(instant: float, zone: str = "Z") -> str:
    return datetime.fromtimestamp(instant, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f") + zone


@pytest.mark.parametrize("form", ["iso", "offset", "epoch", "fraction"])
def test_a_read_starts_at_a_time(spark: SparkSession, service: ModelStreams, waves: Waves, form: str) -> None:
    """``AT_TIMESTAMP`` starts with the first record of each shard that arrived at that time or later."""
    instant = waves.instants[1]
    text = {
        "iso": iso(instant),
        "offset": iso(instant + 7200, "+02:00"),
        "epoch": f"{instant:.0f}",
        "fraction": f"{instant - 0.5:.3f}",
    }[form]
    frame = read(
        spark,
        service.endpoint,
        f"{waves.first},{waves.second}",
        startingPosition="AT_TIMESTAMP",
        startingTimestamp=text,
    )

    assert of(frame.collect()) == waves.since(instant)


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
@pytest.mark.parametrize("place", [0, 17, -1])
def test_a_read_starts_at_a_sequence_number(
    spark: SparkSession, service: ModelStreams, waves: Waves, kind: str, place: int
) -> None:
    """AT includes the record and AFTER does not; a shard that is not listed starts at its oldest record."""
    listed, other = service.open_shards(waves.first)
    shard = [record for record in waves.records if record.stream == waves.first and record.shard == listed]
    rest = [record for record in waves.records if record.stream == waves.first and record.shard == other]
    number = shard[place].number
    position = json.dumps({listed: {kind: shard[place].written}})

    rows = read(spark, service.endpoint, waves.first, startingPosition=position).collect()

    least = number if kind == "AT_SEQUENCE_NUMBER" else number + 1
    assert rest
    assert of(rows) == sorted([record for record in shard if record.number >= least] + rest)


@BOTH
def test_a_batch_read_ends_at_a_time(spark: SparkSession, service: ModelStreams, waves: Waves) -> None:
    """``endingPosition`` ``AT_TIMESTAMP`` leaves out records that arrived at that time or later."""
    instant = waves.instants[-1]
    frame = read(
        spark,
        service.endpoint,
        f"{waves.first},{waves.second}",
        endingPosition="AT_TIMESTAMP",
        endingTimestamp=iso(instant),
    )

    assert of(frame.collect()) == waves.before(instant) != []


@BOTH
def test_batch_and_streaming_read_the_same(
    spark: SparkSession, service: ModelStreams, waves: Waves, checkpoint: str
) -> None:
    """All records of several streams, with the same values in every column."""
    both = f"{waves.first},{waves.second}"
    batch = read(spark, service.endpoint, both, endingPosition="LATEST").collect()
    run = start(read_stream(spark, service.endpoint, both), checkpoint, availableNow=True)

    assert sorted(map(tuple, batch)) == sorted(map(tuple, run.rows))
    assert of(batch) == sorted(waves.records)
    assert {row.subSequenceNumber for row in batch} == {0}


def test_streams_by_their_arns(spark: SparkSession, service: ModelStreams, waves: Waves) -> None:
    """``streamArn`` in place of ``streamName``. Rows and offsets hold the names."""
    arns = [
        service.client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]["StreamARN"]
        for name in (waves.first, waves.second)
    ]
    frame = (
        spark.read.format("kinesis-efo")
        .options(streamArn=", ".join(arns), startingPosition="TRIM_HORIZON", endpointUrl=service.endpoint)
        .load()
    )

    assert of(frame.collect()) == sorted(waves.records)


@BOTH
def test_latest_is_pinned_when_the_query_first_starts(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """``LATEST`` is the time of the first start. A restarted query reads what has arrived since that time."""
    stream = service.create(2)
    service.put(stream, records(50))
    service.clock.advance(seconds=2)  # the library knows the service's clock to a second
    frame = read_stream(spark, service.endpoint, stream, startingPosition="LATEST")
    run = start(frame, checkpoint)
    run.wait_until(lambda: 0 in run.batches, "the first batch")
    assert run.stop() == []
    between = records(70, start=1000)
    service.put(stream, between)
    service.clock.advance(seconds=60)

    again = start(frame, checkpoint)
    again.wait_for_rows(70)
    later = records(30, start=2000)
    service.put(stream, later)
    again.wait_for_rows(100)
    rows = again.stop()

    assert sorted(bytes(row.data) for row in rows) == sorted(data for _, data in between + later)
    pinned = logged_offsets(checkpoint)[0]["streams"][stream]
    assert {len(set(position)) for position in pinned.values()} == {2}
    assert all(position["at"].endswith("Z") and position["pinned"] for position in pinned.values())


# --- what a batch holds -------------------------------------------------------------------------------


class Backlog(NamedTuple):
    stream: str
    records: list[Known]


@pytest.fixture(scope="module")
def backlog(module_service: ModelStreams) -> Backlog:
    """600 records of 26 bytes (key included), 100 a second, on two shards."""
    service = module_service
    stream = service.create(2)
    for wave in range(6):
        service.put(stream, records(100, start=100 * wave))
        service.clock.advance(seconds=1.05)
    return Backlog(stream, sorted(known(service, stream), key=lambda record: record.arrival))


LIMITS: dict[str, tuple[dict[str, str], Callable[[Sequence[Known]], float], float]] = {
    "records": ({"maxRecordsPerTrigger": "150"}, len, 150),
    "bytes": ({"maxBytesPerTrigger": "3900"}, lambda batch: 26 * len(batch), 3900),
    "time": (
        {"maxTimeSpanPerTrigger": "2s"},
        lambda batch: max(r.arrival for r in batch) - min(r.arrival for r in batch),
        1.9995,
    ),
}


@BOTH
@pytest.mark.parametrize("limit", LIMITS)
def test_every_batch_keeps_to_the_limit(
    spark: SparkSession, service: ModelStreams, backlog: Backlog, checkpoint: str, limit: str
) -> None:
    """A backlog that the planner has probed to its end comes in batches within the limit, each row once."""
    service.change_laws(late_tip=0.0)  # so that the last page says that it is the last
    options, measure, most = LIMITS[limit]
    run = start(read_stream(spark, service.endpoint, backlog.stream, **options), checkpoint)
    run.wait_for_rows(len(backlog.records))
    run.stop()

    batches = [of(batch) for batch in run.batches.values() if batch]
    # Of records that the planner has not seen yet, it estimates how many there are from those that it has: it
    # may be wrong about a batch, but not about all of them.
    estimate = 1.0 if limit == "time" else 1.5
    assert max(map(measure, batches)) <= most * estimate
    assert statistics.mean(map(measure, batches)) <= most
    span = backlog.records[-1].arrival - backlog.records[0].arrival
    assert 3 <= len(batches) <= max(10, span)  # two batches limited by time have more than two seconds
    assert of(run.rows) == sorted(backlog.records)
    assert_in_order(run.rows)


def assert_in_order(rows: Sequence[Row]) -> None:
    """Records of a shard come in sequence order, from batch to batch and within each."""
    by_shard: dict[str, list[int]] = {}
    for row in rows:
        by_shard.setdefault(row.shardId, []).append(int(row.sequenceNumber))
    assert all(numbers == sorted(numbers) for numbers in by_shard.values())


def test_available_now_reads_a_backlog_in_batches_within_the_limit(
    spark: SparkSession, service: ModelStreams, backlog: Backlog, checkpoint: str
) -> None:
    """All that was there at the start. Before Spark 4.2 a run is one batch, and the next run continues."""
    frame = read_stream(spark, service.endpoint, backlog.stream, maxRecordsPerTrigger="250")

    run = start(frame, checkpoint, availableNow=True)

    if HAS_ADMISSION_CONTROL:
        assert len(run.sizes) == 3
        assert max(run.sizes) <= 250
        assert of(run.rows) == sorted(backlog.records)
        return
    assert len(run.sizes) == 1
    assert 0 < run.sizes[0] <= 250
    rows = run.rows
    for _ in range(3):
        rows += start(frame, checkpoint, availableNow=True).rows
    assert of(rows) == sorted(backlog.records)


@BOTH
def test_an_idle_query_makes_no_batches(spark: SparkSession, service: ModelStreams, checkpoint: str) -> None:
    """Without news the offset stays the same, so Spark makes no batch and logs nothing."""
    stream = service.create(2)
    service.put(stream, records(20))
    run = start(read_stream(spark, service.endpoint, stream), checkpoint)
    run.wait_for_rows(20)
    batches = list(run.batches)
    time.sleep(3)

    assert list(run.batches) == batches
    run.stop()
    assert list(logged_offsets(checkpoint)) == batches


@BOTH
@needs_admission_control
def test_progress_shows_how_far_the_query_is_behind(
    spark: SparkSession, service: ModelStreams, backlog: Backlog, checkpoint: str
) -> None:
    """``sources[0].latestOffset`` has the newest known position and the lag of every shard."""
    service.change_laws(late_tip=0.0)  # so that the last page says that it is the last
    frame = read_stream(spark, service.endpoint, backlog.stream, maxRecordsPerTrigger="300")

    run = start(frame, checkpoint, availableNow=True)

    reports = [json.loads(each.json) for each in run.query.recentProgress if each.numInputRows]
    sources = [report["sources"][0] for report in reports]
    assert len(sources) == 2
    newest = {
        shard: max(r.number for r in backlog.records if r.shard == shard)
        for shard in service.open_shards(backlog.stream)
    }
    for source in sources:
        latest = offset(source["latestOffset"])
        assert {s: int(p["after"]) for s, p in latest["streams"][backlog.stream].items()} == newest
        assert set(latest["millisBehindLatest"][backlog.stream]) == set(newest)
    behind = [offset(source["latestOffset"])["millisBehindLatest"][backlog.stream] for source in sources]
    assert max(behind[0].values()) >= 1000
    assert set(behind[-1].values()) == {0}


def offset(value: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return json.loads(value) if isinstance(value, str) else value


# --- shards that come while it runs -------------------------------------------------------------------


# --- aggregated records -------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("deaggregate", [True, False])
def test_aggregated_records(spark: SparkSession, service: ModelStreams, *, deaggregate: bool) -> None:
    """A row for each user record, numbered from 0 and with its own key; or, on demand, for the aggregate."""
    stream = service.create(1)
    users = [(f"user-{n}", f"value {n}".encode()) for n in range(25)]
    aggregator = RecordAggregator()
    for key, data in users:
        assert aggregator.add_user_record(key, data) is None
    key, _, packed = aggregator.clear_and_get().get_contents()
    service.put(stream, [("before", b"plain"), (key, packed), ("after", b"plain too")])

    frame = read(spark, service.endpoint, stream, deaggregate=str(deaggregate).lower())
    rows = sorted(frame.collect(), key=lambda row: (int(row.sequenceNumber), row.subSequenceNumber))

    found = [(row.subSequenceNumber, row.partitionKey, bytes(row.data)) for row in rows]
    middle = [(n, *user) for n, user in enumerate(users)] if deaggregate else [(0, key, packed)]
    assert found == [(0, "before", b"plain"), *middle, (0, "after", b"plain too")]
    assert len({row.sequenceNumber for row in rows}) == 3


# --- faults -------------------------------------------------------------------------------------------

OPERATIONS = ("DescribeStreamSummary", "ListShards", "GetShardIterator", "GetRecords")

CODES = (
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "InternalFailure",
    "ServiceUnavailable",
    LOST_ANSWER,
)

QUICK = {
    "getRecordsBackoffBase": "50ms",
    "getShardIteratorBackoffBase": "50ms",
    "listShardsBackoffBase": "50ms",
}


@pytest.mark.parametrize("fault", [*CODES, "reset", "cut"])
def test_faults_that_pass_change_nothing(
    spark: SparkSession, service: ModelStreams, checkpoint: str, fault: str
) -> None:
    """Each operation fails once or twice; every row comes once."""
    stream = service.create(2)
    service.put(stream, records(300))
    # This is the first call, and an endpoint that has never answered is given up sooner.
    times = {operation: 1 if operation == "DescribeStreamSummary" else 2 for operation in OPERATIONS}
    if fault in CODES:
        for operation, count in times.items():
            service.model.faults.force(operation, fault, times=count)
    else:
        service.damage(
            *(
                WireFault(
                    operation=operation, kind="reset" if fault == "reset" else "cut", at=20, times=count
                )
                for operation, count in times.items()
            )
        )
    frame = read_stream(spark, service.endpoint, stream, **QUICK)

    run = start(frame, checkpoint, availableNow=True)

    assert of(run.rows) == sorted(known(service, stream))
    if fault in CODES:
        assert service.failed == {(operation, fault): count for operation, count in times.items()}
    else:
        assert service.damaged == sum(times.values())


# Tasks ask for pages of this size, the planner never does.
TASKS_ONLY = {"getRecordsLimit": "77"}


class TaskPages:
    """Fails some of the pages that tasks ask for; `calls`: the numbers of the calls that fail, from 0."""

    def __init__(self, code: str, calls: range) -> None:
        self._code = code
        self._calls = calls
        self._count = 0

    def __call__(self, operation: str, request: Mapping[str, Any]) -> str | None:
        if operation != "GetRecords" or request.get("Limit") != int(TASKS_ONLY["getRecordsLimit"]):
            return None
        number, self._count = self._count, self._count + 1
        return self._code if number in self._calls else None


def test_after_the_last_retry_the_query_says_what_failed_where(
    spark: SparkSession, service: ModelStreams, checkpoint: str
) -> None:
    """The error names stream, shard, operation and cause. A restarted query reads the batch that failed."""
    stream = service.create(1)
    service.put(stream, records(200))
    service.fail_if(TaskPages("InternalFailure", range(1000)))
    retries = {"getRecordsMaxRetries": "2", "readRetryDuration": "5s"}
    frame = read_stream(spark, service.endpoint, stream, **retries, **QUICK, **TASKS_ONLY)

    message = start(frame, checkpoint).error()

    (shard,) = service.open_shards(stream)
    assert f"GetRecords of {stream}/{shard}" in message
    assert "InternalFailure" in message
    assert service.failed.keys() == {("GetRecords", "InternalFailure")}
    assert service.failed["GetRecords", "InternalFailure"] % 3 == 0
    left_open = logged_offsets(checkpoint)

    service.clear_faults()
    service.put(stream, records(50, start=200))
    run = start(frame, checkpoint)
    run.wait_for_rows(250)
    run.stop()

    assert [len(run.batches[batch]) for batch in sorted(run.batches)] == [200, 50]
    assert logged_offsets(checkpoint)[0] == left_open[0]
    assert of(run.rows) == sorted(known(service, stream))


def test_a_task_that_is_throttled_waits(spark: SparkSession, service: ModelStreams, checkpoint: str) -> None:
    """For as long as it takes, also when the last retry of a call has been refused: nothing fails."""
    stream = service.create(1)
    service.put(stream, records(200))
    code = "ProvisionedThroughputExceededException"
    service.fail_if(TaskPages(code, range(10)))
    frame = read_stream(spark, service.endpoint, stream, getRecordsMaxRetries="2", **QUICK, **TASKS_ONLY)

    run = start(frame, checkpoint)
    run.wait_for_rows(200)
    run.stop()

    assert service.failed == {("GetRecords", code): 10}
    assert of(run.rows) == sorted(known(service, stream))


def test_a_role_is_assumed_at_both_ends(
    spark: SparkSession, service: ModelStreams, moto: Server, checkpoint: str
) -> None:
    """With ``roleArn`` all calls of the planner and of tasks have the role's credentials."""
    source, target = service.create(1), service.create(1)
    service.put(source, records(30))
    service.model.expire_credentials("static")
    before = dict(service.model.refusals)
    role = {
        "region": REGION,
        "endpointUrl": service.endpoint,
        "stsEndpointUrl": moto.endpoint,
        "roleArn": "arn:aws:iam::123456789012:role/reader",
        "roleExternalId": "external",
        "awsAccessKeyId": "static",
        "awsSecretAccessKey": "static",
    }
    frame = spark.readStream.format("kinesis-efo").options(
        streamName=source, startingPosition="TRIM_HORIZON", **role
    )
    query = (
        frame.load()
        .writeStream.format("async-sink")
        .options(destination="kinesis", streamName=target, **role)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(WAIT))

    assert sorted(record.data for record in service.read(target)) == [data for _, data in records(30)]
    refused = {what for what, count in service.model.refusals.items() if count > before.get(what, 0)}
    assert "ExpiredTokenException" not in {code for _, code in refused}


def test_spark_tries_the_same_range_again(
    make_spark: Callable[..., SparkSession], service: ModelStreams, checkpoint: str
) -> None:
    """The next attempt of a task that failed reads the range from its start, and each row comes once."""
    stream = service.create(1)
    service.put(stream, records(200))
    # The second page of the task fails in all its retries, after Spark has got the rows of the first.
    service.fail_if(TaskPages("InternalFailure", range(1, 4)))
    frame = read_stream(
        make_spark(master="local[2,4]"),
        service.endpoint,
        stream,
        getRecordsMaxRetries="1",
        **QUICK,
        **TASKS_ONLY,
    )

    run = start(frame, checkpoint, availableNow=True)

    assert service.failed == {("GetRecords", "InternalFailure"): 3}
    assert run.sizes == [200]
    assert of(run.rows) == sorted(known(service, stream))
