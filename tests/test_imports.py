"""What the processes of a query import: each pays for its imports before the first row."""

from __future__ import annotations

import subprocess
import sys

import pytest

SDK = ("boto3", "botocore", "urllib3")
ARROW = ("pyarrow", "numpy", "pandas")
FAN_OUT = (
    "sluice.kinesis.consumers",
    "sluice.kinesis.fanout_driver",
    "sluice.kinesis.fanout_task",
    "sluice.kinesis.fanout.agent",
    "sluice.kinesis.fanout.channel",
    "sluice.kinesis.fanout.driver",
    "sluice.kinesis.fanout.subscriptions",
    "sluice.kinesis.fanout.task",
)
PLANNING = ("sluice.source.enumerator", "sluice.source.planner", "sluice.kinesis.driver")
READING = (
    "sluice.source.reader",
    "sluice.kinesis.record_batches",
    "sluice.kinesis.kpl",
)
CALLING = ("sluice.aws.calls", "sluice.aws.clients", "tenacity")
SINK = ("sluice.sink", "sluice.destinations")

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


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        pytest.param(
            "import pyspark_kinesis_efo, pyspark_async_sink, pyspark_dynamodb_streams",
            (*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK, "sluice.kinesis", "sluice.source"),
            id="a session looks for formats",
        ),
        pytest.param(
            LOAD, (*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK), id="load() parses options"
        ),
        pytest.param(
            READER, (*SDK, *ARROW, *FAN_OUT, *PLANNING, *READING, *CALLING, *SINK), id="a reader is pickled"
        ),
        pytest.param(
            f"{READER}\nimport sluice.kinesis.driver",
            (*ARROW, *FAN_OUT, *READING, *SINK),
            id="a query that polls is planned",
        ),
        pytest.param(
            f"{READER}\nimport sluice.source.fetcher, sluice.source.log_assembly, sluice.source.reader\n"
            "import sluice.kinesis.record_batches, sluice.kinesis.client",
            (*FAN_OUT, *PLANNING, *SINK),
            id="a task polls",
        ),
    ],
)
def test_a_process_imports_only_what_it_uses(code: str, unused: tuple[str, ...]) -> None:
    """Each list names what takes long, and what it is easy to import by accident."""
    listing = "import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{listing}"], check=True, capture_output=True, text=True
    )
    loaded = done.stdout.split()
    assert "sluice.spark.source" in loaded
    assert not [m for m in loaded if any(m == name or m.startswith(f"{name}.") for name in unused)]


def test_the_public_names_of_the_source_are_there() -> None:
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
