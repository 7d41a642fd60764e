"""The hook that docs/destinations.md prints adds partitions to a table in the Glue Data Catalog."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fake_s3 import BACKOFF, retrier
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from sluice.destinations import read_sink
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "destinations.md"
HOURS = [0, 0, 1, 26]
SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("arrived", TimestampType()),
        StructField("day", StringType()),
        StructField("hour", LongType()),
    ]
)


@pytest.fixture
def glue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A catalogue with the page's table, and the hook in a module as the page says."""
    moto = pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    (code,) = re.findall(
        r"^```python\n(# lake_hooks\.py.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "lake_hooks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with moto.mock_aws():
        client = boto3.client("glue", region_name="eu-west-1")
        client.create_database(DatabaseInput={"Name": "lake"})
        client.create_table(
            DatabaseName="lake",
            TableInput={
                "Name": "clicks",
                "PartitionKeys": [{"Name": "day", "Type": "string"}, {"Name": "hour", "Type": "int"}],
                "StorageDescriptor": {
                    "Columns": [{"Name": "id", "Type": "bigint"}],
                    "Location": "s3://lake/clicks",
                },
            },
        )
        yield client
    sys.modules.pop("lake_hooks", None)


def write(path: Path, batch: int) -> None:
    """Commits a batch with a row at each hour of `HOURS`, one day a batch further."""
    options = {
        "destination": "files",
        "path": str(path),
        "partitionBy": "day,hour",
        "partitionTime": "{day} {hour}:00",
        "partitionInterval": "1h",
        "watermarkColumn": "arrived",
        "partitionHook": "lake_hooks:add_partition",
    }
    destination: Any = read_sink(options).destination
    destination.check()
    at = [(batch * 24 + hour) * 3_600_000_000 for hour in HOURS]
    days = [f"1970-01-{batch + hour // 24 + 1:02}" for hour in HOURS]
    writer = destination.create_writer(SCHEMA, Origin("files", "q", "r", batch, 0, 0))
    writer.write(
        pa.RecordBatch.from_pydict(
            {
                "id": pa.array(HOURS, pa.int64()),
                "arrived": pa.array(at, pa.timestamp("us", "UTC")),
                "day": days,
                "hour": pa.array([hour % 24 for hour in HOURS], pa.int64()),
            }
        )
    )
    made = EpochCommit(destination, Epoch("q", "r", batch), retrier=retrier(), backoff=BACKOFF)
    made.commit(writer.prepare_commit())
    made.commit(writer.prepare_commit())  # as after a restart: the partitions are there already


def test_the_hook_adds_complete_partitions(glue: Any, tmp_path: Path) -> None:
    """Each once, with its location and the table's columns; open partitions are missing."""
    path = tmp_path / "clicks"
    for batch in range(2):
        write(path, batch)

    found = glue.get_partitions(DatabaseName="lake", TableName="clicks")["Partitions"]
    assert sorted(tuple(each["Values"]) for each in found) == [
        ("1970-01-01", "0"),
        ("1970-01-01", "1"),
        ("1970-01-02", "0"),
        ("1970-01-02", "1"),
        ("1970-01-02", "2"),
    ]
    for each in found:
        day, hour = each["Values"]
        assert each["StorageDescriptor"]["Location"] == f"file://{path}/day={day}/hour={hour}/"
        assert each["StorageDescriptor"]["Columns"] == [{"Name": "id", "Type": "bigint"}]
