"""What the processes of a query import: each pays for its imports before the first row."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

SDK = ("boto3", "botocore", "urllib3")
ARROW = ("pyarrow", "numpy", "pandas")
FAN_OUT = (
    "sluice.channels",
    "sluice.kinesis.consumers.registrar",
    "sluice.kinesis.consumers.ownership",
    "sluice.kinesis.planner.fan_out_coordinator",
    "sluice.kinesis.planner.agent_coordinator",
    "sluice.kinesis.task.cursors",
    "sluice.kinesis.agent",
    "sluice.kinesis.planner.agent_client",
    "sluice.kinesis.subscriptions",
    "sluice.kinesis.task",
)
PLANNING = (
    "sluice.source.planning.enumerator",
    "sluice.source.planning.planner",
    "sluice.kinesis.planner.coordinator",
)
READING = (
    "sluice.source.reading.reader",
    "sluice.kinesis.log.record_batches",
    "sluice.kinesis.log.kpl",
)
CALLING = ("sluice.aws.calling.calls", "sluice.aws.calling.clients", "tenacity")
SINK = ("sluice.sink", "sluice.destinations")
METADATA = ("importlib.metadata",)

# A Python of Spark's, and not an application, which asks itself whether Spark would find Sluice.
STARTED_BY_SPARK = "import importlib.util; __spec__ = importlib.util.find_spec('pyspark.daemon')"
OPTIONS = {"streamname": "s", "region": "eu-west-1", "startingposition": "TRIM_HORIZON"}
LOAD = f"""
from pyspark.sql.datasource import DataSource
from sluice.kinesis.source import SCHEMA
from sluice.spark.source import KinesisDataSource
source = KinesisDataSource({OPTIONS})
source.schema()
"""
READER = f"""{LOAD}
from pyspark.sql.types import *
types = {{"binary": BinaryType, "string": StringType, "long": LongType, "timestamp": TimestampType}}
fields = [field.split() for field in SCHEMA.split(", ")]
schema = StructType([StructField(name, types[kind]()) for name, kind in fields])
reader = source.streamReader(schema)
"""
ROWS = f"""{READER}
from integration.model.cbor import encode
from integration.model.wire import TIMES
from sluice.aws.wire.pages import take_records
from sluice.aws.wire.record_bounds import RecordBounds
from sluice.aws.wire.record_columns import RecordColumns
from sluice.aws.wire.records import WireRecord
from sluice.kinesis.log.record_batches import to_record_batches
from sluice.source.model.offsets import HORIZON, Closed, SplitRange
from sluice.source.model.splits import SplitId
import sluice.source.reading.fetcher, sluice.source.reading.reader, sluice.source.logs.checked_log
from sluice.source.logs.stream_log import Record
from sluice.spark import source_reader
source_reader._arrow_schema(schema)
record = dict(ApproximateArrivalTimestamp=1441215410.867, Data=b"x", PartitionKey="k", SequenceNumber="1")
body = encode([record] * 300, TIMES)
columns = take_records(RecordBounds.of_array(body, 0)[0])
assert isinstance(columns, RecordColumns)
pages = [WireRecord("1", 1.5, "k", b"x")], [Record("1", 1, "k", b"x")], columns
shards = [SplitRange(SplitId("s", shard), HORIZON, Closed()) for shard in ("1", "2")]
rows = [b.num_rows for p in pages for b in to_record_batches([(s, p) for s in shards], unpack=True)]
assert sum(rows) == 604, rows
"""


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        pytest.param(
            "import pyspark_kinesis_efo, pyspark_async_sink, pyspark_dynamodb_streams",
            (
                *(*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK, *METADATA),
                *("sluice.kinesis", "sluice.source"),
            ),
            id="a session looks for formats",
        ),
        pytest.param(
            LOAD,
            (*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK, *METADATA),
            id="load() parses options",
        ),
        pytest.param(
            READER,
            (*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK, *METADATA),
            id="a reader is pickled",
        ),
        pytest.param(
            f"{READER}\nimport sluice.kinesis.planner.coordinator",
            (*ARROW, *FAN_OUT, *READING, *SINK),
            id="a query that polls is planned",
        ),
        pytest.param(
            f"{READER}\nimport sluice.source.reading.fetcher, sluice.source.log_source\n"
            "import sluice.source.logs.checked_log, sluice.source.reading.reader\n"
            "import sluice.kinesis.log.record_batches, sluice.kinesis.log.client",
            (*FAN_OUT, *PLANNING, *SINK),
            id="a task polls",
        ),
        pytest.param(ROWS, ("pandas", *FAN_OUT, *PLANNING, *SINK), id="records become rows"),
    ],
)
def test_a_process_imports_only_what_it_uses(code: str, unused: tuple[str, ...]) -> None:
    """Each list names what takes long, and what it is easy to import by accident.

    PySpark 4.1 imports numpy by itself.
    """
    loaded = modules_after(f"{STARTED_BY_SPARK}\n{code}")
    ours = loaded - modules_after("import pyspark.sql.datasource")

    assert "sluice.spark.source" in ours
    assert not [m for m in ours if any(m == name or m.startswith(f"{name}.") for name in unused)]


@functools.cache
def modules_after(code: str) -> frozenset[str]:
    done = subprocess.run(
        (sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"),
        check=True,
        capture_output=True,
        text=True,
    )
    return frozenset(done.stdout.split())


def test_the_source_has_its_public_names() -> None:
    """They are imported when they are asked for."""
    code = """
import sluice.source
from sluice.source import *
assert set(sluice.source.__all__) <= set(dir(sluice.source))
for name in set(sluice.source.__all__) - {"Position"}:
    assert globals()[name].__module__.startswith("sluice.source.")
assert not hasattr(sluice.source, "Nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
