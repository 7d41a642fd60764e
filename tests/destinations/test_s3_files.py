"""Destination s3, one task: its files, what they hold, and how much is in memory."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_s3 import BACKOFF, FakeS3, bucket, destination, refusal
from pyspark.sql import types as t

from sluice.destinations.files import upload, writer
from sluice.destinations.files.upload import PART_SIZE, PartSender, PartStream
from sluice.errors import InvalidRecordError, OptionError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

ORIGIN = Origin("s3", query="q-1", run="r-1", batch=7, partition=3, attempt=9)
MIB = 2**20


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


LONG = schema(id=t.LongType())


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def written(s3: FakeS3, kinds: t.StructType, *batches: pa.RecordBatch, **settings: Any) -> dict[str, bytes]:
    """The files below the path after a task's rows were committed, by key relative to the path."""
    made = destination(s3, **settings)
    task = made.create_writer(kinds, ORIGIN)
    for each in batches:
        task.write(each)
    uploads = task.prepare_commit()
    task.close()
    assert s3.data == set()
    assert task.bytes == sum(each.size for each in uploads)
    EpochCommit(made, Epoch("q-1", "r-1", 7), backoff=BACKOFF).commit(uploads)
    assert s3.uploads == {}
    return {key.removeprefix("events/"): s3.objects[key] for key in sorted(s3.data)}


def test_a_task_without_rows_makes_no_upload() -> None:
    """It makes no request at all. This is also how the driver checks a schema."""
    s3 = FakeS3()
    task = destination(s3).create_writer(LONG, ORIGIN)
    task.write(batch(id=pa.array([], pa.int64())))

    assert task.prepare_commit() == []
    task.abort()
    task.close()
    assert s3.calls == []


def test_the_names_of_files() -> None:
    """Query, batch, run, partition, attempt and number: no two attempts use the same name."""
    found = written(FakeS3(), LONG, batch(id=[1]))

    assert found == {
        "part-00003_q-1_00000000000000000007_r-1_9_0000.jsonl": b'{"id":1}\n',
    }


def test_json_lines_are_as_spark_writes_them() -> None:
    """Without nulls; timestamps in UTC, decimals as numbers, NaN and infinities as strings."""
    nested = pa.struct([("x", pa.float64()), ("y", pa.string())])
    rows = batch(
        id=[1, None],
        real=[float("nan"), float("-inf")],
        price=pa.array([Decimal("1.10"), None]),
        text=["grün\n", None],
        data=[b"\xff\x00", None],
        day=[date(2026, 11, 21), None],
        at=pa.array(
            [datetime(2026, 11, 21, 10, 0, 0, 1, timezone.utc), None], pa.timestamp("us", "Asia/Tokyo")
        ),
        local=[datetime(2026, 11, 21, 10, 0, 0, 1), None],  # noqa: DTZ001 - a timestamp_ntz
        reals=pa.array([[float("inf"), None, 1.5], None]),
        map=pa.array([[("k", float("nan")), ("n", None)], None], pa.map_(pa.string(), pa.float64())),
        nested=pa.array([{"x": float("nan"), "y": None}, None], nested),
    )
    kinds = schema(
        id=t.LongType(),
        real=t.DoubleType(),
        price=t.DecimalType(3, 2),
        text=t.StringType(),
        data=t.BinaryType(),
        day=t.DateType(),
        at=t.TimestampType(),
        local=t.TimestampNTZType(),
        reals=t.ArrayType(t.DoubleType()),
        map=t.MapType(t.StringType(), t.DoubleType()),
        nested=schema(x=t.DoubleType(), y=t.StringType()),
    )
    (body,) = written(FakeS3(), kinds, rows).values()

    first, second = body.decode().splitlines()
    assert '"price":1.10' in first
    assert json.loads(first) == {
        "id": 1,
        "real": "NaN",
        "price": 1.1,
        "text": "grün\n",
        "data": "/wA=",
        "day": "2026-11-21",
        "at": "2026-11-21T10:00:00.000001Z",
        "local": "2026-11-21T10:00:00.000001",
        "reals": ["Infinity", None, 1.5],
        "map": {"k": "NaN", "n": None},
        "nested": {"x": "NaN"},
    }
    assert json.loads(second) == {"real": "-Infinity"}


def test_compression() -> None:
    """The file's extension names it."""
    ids = list(range(5000))
    (plain,) = written(FakeS3(), LONG, batch(id=ids)).values()
    ((name, packed),) = written(FakeS3(), LONG, batch(id=ids), compression="gzip").items()
    assert name.endswith(".jsonl.gz")
    assert gzip.decompress(packed) == plain

    for compression, ending in (
        ("snappy", "snappy.parquet"),
        ("zstd", "zstd.parquet"),
        ("none", "_0000.parquet"),
    ):
        s3 = FakeS3()
        ((name, body),) = written(
            s3, LONG, batch(id=ids), file_format="parquet", compression=compression
        ).items()
        file = pq.ParquetFile(pa.BufferReader(body))
        assert name.endswith(ending)
        assert file.read().column("id").to_pylist() == ids
        found = file.metadata.row_group(0).column(0).compression.lower()
        assert found == ("uncompressed" if compression == "none" else compression)


def test_partitions() -> None:
    """Rows keep their order. The path has the partition columns, spelled as in the schema."""
    rows = batch(
        id=[0, 1, 2, 3, 4, 5, 6],
        Land=["DE", "a/b", None, "", "DE", "é=%", "a/b"],
        day=[date(2026, 1, 1)] * 6 + [None],
        flag=[True, False, True, None, True, True, False],
    )
    kinds = schema(id=t.LongType(), Land=t.StringType(), day=t.DateType(), flag=t.BooleanType())
    found = written(FakeS3(), kinds, rows, batch(**rows.to_pydict()), partition_by=("land", "DAY", "flag"))

    contents = {
        key.rpartition("/")[0]: [json.loads(line) for line in body.splitlines()]
        for key, body in found.items()
    }
    none = "__HIVE_DEFAULT_PARTITION__"
    assert contents == {
        "Land=DE/day=2026-01-01/flag=true": [{"id": 0}, {"id": 4}] * 2,
        "Land=a%2Fb/day=2026-01-01/flag=false": [{"id": 1}] * 2,
        f"Land=a%2Fb/day={none}/flag=false": [{"id": 6}] * 2,
        f"Land={none}/day=2026-01-01/flag=true": [{"id": 2}] * 2,
        f"Land={none}/day=2026-01-01/flag={none}": [{"id": 3}] * 2,
        "Land=é%3D%25/day=2026-01-01/flag=true": [{"id": 5}] * 2,
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("nowhere",), "column 'nowhere' does not exist"),
        (("id", "ID"), "column 'id' is named twice"),
        (("real",), "column 'real' is double: allowed is string, boolean"),
        (("id", "real", "text"), "no column is left"),
    ],
)
def test_columns_that_cannot_partition_are_refused(columns: tuple[str, ...], message: str) -> None:
    """Before any row is written."""
    kinds = schema(id=t.LongType(), real=t.DoubleType(), text=t.StringType())
    with pytest.raises(OptionError, match=message):
        destination(FakeS3(), partition_by=columns).create_writer(kinds, ORIGIN)


X = t.StructField("x", t.LongType())
UPPER_X = t.StructField("X", t.LongType())


@pytest.mark.parametrize("settings", [{}, {"file_format": "parquet"}, {"partition_by": ("x",)}])
@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ([X, X, t.StructField("y", t.LongType())], "'x' and 'x'"),
        ([X, UPPER_X, t.StructField("y", t.LongType())], "'x' and 'X'"),
        ([X, t.StructField("s", t.StructType([X, UPPER_X]))], r"'s\.x' and 's\.X'"),
        ([X, t.StructField("l", t.ArrayType(t.StructType([X, X])))], r"'l\.x' and 'l\.x'"),
        (
            [X, t.StructField("m", t.MapType(t.StringType(), t.StructType([UPPER_X, X])))],
            r"'m\.X' and 'm\.x'",
        ),
    ],
)
def test_columns_that_differ_only_in_case_are_refused(
    columns: list[t.StructField], names: str, settings: dict[str, Any]
) -> None:
    """Where the query starts, in each format: Spark refuses to read the files."""
    with pytest.raises(OptionError, match=f"both of the columns {names}: rename one"):
        destination(FakeS3(), **settings).create_writer(t.StructType(columns), ORIGIN)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (t.DayTimeIntervalType(), "interval day to second"),
        (t.ArrayType(t.NullType()), "void"),
        (schema(a=t.MapType(t.LongType(), t.StringType())), "map<bigint,string>"),
    ],
)
def test_columns_that_a_file_cannot_hold_are_refused(kind: t.DataType, shown: str) -> None:
    """Before any row is written. The message has the unsupported type inside the column's type."""
    with pytest.raises(OptionError, match=f"format jsonl take .*: column 'x' is {shown}"):
        destination(FakeS3()).create_writer(schema(id=t.LongType(), x=kind), ORIGIN)
    if not isinstance(kind, t.StructType):
        with pytest.raises(OptionError, match="format parquet"):
            destination(FakeS3(), file_format="parquet", compression="none").create_writer(
                schema(x=kind), ORIGIN
            )


def test_a_partition_whose_name_is_too_long_is_refused() -> None:
    """A key has at most 1024 bytes."""
    kinds = schema(id=t.LongType(), text=t.StringType())
    task = destination(FakeS3(), partition_by=("text",)).create_writer(kinds, ORIGIN)
    with pytest.raises(InvalidRecordError, match=r"a key of 1[0-9]{3} bytes"):
        task.write(batch(id=[1], text=["é" * 500]))


def test_the_number_of_open_files_is_bounded() -> None:
    """To open another one, the least recently used is ended. More rows for its partition go to a new file."""
    kinds = schema(id=t.LongType(), part=t.LongType())
    s3 = FakeS3()
    made = destination(s3, partition_by=("part",), max_open_files=2)
    task = made.create_writer(kinds, ORIGIN)
    for number, part in enumerate([1, 2, 1, 3, 1, 2]):
        task.write(batch(id=[number], part=[part]))
        assert len(task._open) <= 2
    sizes = [(each.key.split("/")[1], each.rows) for each in task.prepare_commit()]

    assert sizes == [("part=2", 1), ("part=3", 1), ("part=1", 3), ("part=2", 1)]


def test_files_end_when_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """At `maxFileSize`, or later by the size of one write."""
    monkeypatch.setattr(writer, "_MAX_BUFFERED", 1000)
    for file_format in ("jsonl", "parquet"):
        s3 = FakeS3()
        batches = [batch(id=range(n * 1000, n * 1000 + 1000)) for n in range(10)]
        found = written(s3, LONG, *batches, file_format=file_format, compression="none", max_file_size=10_000)
        sizes = [len(body) for body in found.values()]

        assert len(sizes) >= 4
        assert max(sizes) < 30_000


def test_buffered_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all open files of a task."""
    monkeypatch.setattr(writer, "_MAX_BUFFERED", 10_000)
    kinds = schema(id=t.LongType(), part=t.LongType())
    made = destination(FakeS3(), partition_by=("part",), max_open_files=3)
    task = made.create_writer(kinds, ORIGIN)
    for number in range(50):
        ids = range(number * 100, number * 100 + 100)
        task.write(batch(id=ids, part=[(each + number) % 7 for each in ids]))
        held = sum(rows.nbytes for file in task._open.values() for rows in file.buffered)
        assert held == task._buffered
        assert held < 12_000
    assert sum(each.rows for each in task.prepare_commit()) == 5000


def test_parts_are_large_enough_and_in_order() -> None:
    """All parts but the last have the same size, for any sizes of the writes."""
    s3 = FakeS3()
    with ThreadPoolExecutor(4) as pool:
        stream = PartStream(PartSender(bucket(s3), pool, 4), "events/x", "any")
        data = bytes(range(256)) * (MIB // 256)
        for times in (1, 20, 3, 0, 5):
            assert stream.write(data * times) == times * MIB
        stream.finish()
        parts = stream.parts()
    (made,) = s3.uploads.values()
    sent = {number: body for number, (body, _) in made.parts.items()}

    assert [part["PartNumber"] for part in parts] == [1, 2, 3, 4]
    assert [len(sent[number]) for number in (1, 2, 3, 4)] == [PART_SIZE] * 3 + [5 * MIB]
    assert b"".join(sent[number] for number in (1, 2, 3, 4)) == data * 29
    assert stream.size == 29 * MIB


def test_parts_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that writes faster than S3 accepts parts has to wait."""
    monkeypatch.setattr(upload, "PART_SIZE", 1000)
    gate, taken = threading.Semaphore(0), threading.Semaphore(0)
    s3 = FakeS3()

    def hold(_number: int, operation: str) -> None:
        if operation == "upload_part":
            taken.release()
            assert gate.acquire(timeout=120)

    s3.fault = hold
    with ThreadPoolExecutor(4) as pool:
        stream = PartStream(PartSender(bucket(s3), pool, 4), "events/x", "any")
        thread = threading.Thread(target=lambda: stream.write(bytes(9000)))
        thread.start()
        for _ in range(4):
            assert taken.acquire(timeout=120)
        thread.join(0.05)
        assert thread.is_alive()
        assert len(stream._sent) <= 4
        gate.release()  # one part is sent: there is room for another
        assert taken.acquire(timeout=120)
        for _ in range(20):
            gate.release()
        thread.join(120)
        stream.finish()
        assert len(stream.parts()) == 9


def test_a_refused_part_fails_the_task_and_abort_removes_the_upload() -> None:
    """At the latest in `prepare_commit`. A refused abort raises nothing."""
    s3 = FakeS3()
    s3.fault = lambda _number, operation: refusal("AccessDenied", 403) if operation == "upload_part" else None
    task = destination(s3).create_writer(LONG, ORIGIN)
    task.write(batch(id=[1]))
    with pytest.raises(ServiceError, match=r"UploadPart of s3://lake/events/part-00003.* AccessDenied"):
        task.prepare_commit()
    task.abort()
    task.close()
    assert s3.uploads == {}

    task = destination(s3).create_writer(LONG, ORIGIN)
    task.write(batch(id=[1]))
    s3.fault = lambda _number, _operation: refusal("AccessDenied", 403)
    task.abort()
    assert len(s3.uploads) == 1
