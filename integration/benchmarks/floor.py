"""Two streaming sources that do no work: the least time that a micro-batch with a Python source takes.

The floor source always has one row, made when the batch is planned. The rows of the fed source are made at
any time, like the records of a stream, and wait until the batch that runs then has ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

_EVERY = 0.1  # seconds; one row of the fed source is made in each such interval


@dataclass
class Made(InputPartition):
    """When the rows of a batch were made (seconds since the epoch)."""

    at: list[float]


class FloorReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": time.time()}

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"at": time.time()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        del start
        return [Made([end["at"]])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Made)
        yield pa.record_batch({"data": pa.array([repr(at).encode() for at in partition.at], pa.binary())})


class FedReader(FloorReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = (int(offset["at"] / _EVERY) for offset in (start, end))
        times = map(_made, range(first, last + 1))
        return [Made([at for at in times if start["at"] < at <= end["at"]])]


def _made(number: int) -> float:
    """When the row `number` is made: at a random time of its interval, the same at every call."""
    return (number + random.Random(number).random()) * _EVERY


class FloorSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "floor"

    def schema(self) -> str:
        return "data binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return FloorReader()


class FedSource(FloorSource):
    @classmethod
    def name(cls) -> str:
        return "fed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        del schema
        return FedReader()
