"""Amazon Kinesis source and asynchronous batch sink for PySpark.

``pip install`` alone makes the formats ``kinesis-efo`` and ``async-sink`` known to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import (
    CommitError,
    DataLossError,
    InvalidRecordError,
    OptionError,
    ServiceError,
    SluiceError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CommitError",
    "DataLossError",
    "InvalidRecordError",
    "OptionError",
    "ServiceError",
    "SluiceError",
    "committed_files",
    "register",
]


def committed_files(path: str, *, scheme: str = "s3", **connection: str) -> list[str]:
    """The files of all committed epochs below a `path` that destination ``s3`` wrote to.

    Args:
        path: as it was given to the sink, ``s3://bucket/prefix``.
        scheme: what the files' URLs begin with: ``s3a`` for Hadoop's own client.
        connection: the connection options, by the names that source and sink have them
            (``region="eu-west-1"``).

    Returns:
        URLs, those of an epoch one after the other; what is not in the list is not, or not yet, committed.

    Raises:
        OptionError: the path or a connection option cannot work.
        ServiceError: the bucket cannot be read.
    """
    from sluice.destinations.s3.committed_files import list_committed  # noqa: PLC0415 - the SDK, where it is used

    return list_committed(path, scheme, connection)


def register(spark: SparkSession) -> None:
    """Registers both formats by hand, for a session that did not find them by itself."""
    from sluice.spark.sink import AsyncSinkDataSource  # noqa: PLC0415 - Spark is imported where it is used
    from sluice.spark.source import KinesisDataSource  # noqa: PLC0415

    spark.dataSource.register(KinesisDataSource)
    spark.dataSource.register(AsyncSinkDataSource)
