"""Amazon Kinesis source and asynchronous batch sink for PySpark.

``pip install`` registers the formats ``kinesis-efo`` and ``async-sink`` with Spark.
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
    "warn_of_dropped_rows",
]


def committed_files(path: str, *, scheme: str = "s3", **connection: str) -> list[str]:
    """Lists the files of all committed epochs that destination ``s3`` has written below a path.

    Args:
        path: the sink's option ``path``, ``s3://bucket/prefix``.
        scheme: of the returned URLs: ``s3a`` for Hadoop's own client.
        connection: connection options, with the names that source and sink have for them
            (``region="eu-west-1"``).

    Returns:
        The URLs of the files, epoch by epoch. Other files below the path are not committed.

    Raises:
        OptionError: the path or a connection option is not valid.
        ServiceError: S3 refuses a call.
        CommitError: a manifest cannot be read.
    """
    from sluice.destinations.s3.committed_files import list_committed  # noqa: PLC0415 - imports the SDK

    return list_committed(path, scheme, connection)


def register(spark: SparkSession) -> None:
    """Registers both formats with a session, in case Spark has not found them itself.

    It also does what `warn_of_dropped_rows` does, except with Spark Connect.
    """
    from sluice.spark.dropped_rows import listen_if_possible  # noqa: PLC0415 - imports Spark
    from sluice.spark.sink import AsyncSinkDataSource  # noqa: PLC0415
    from sluice.spark.source import KinesisDataSource  # noqa: PLC0415

    spark.dataSource.register(KinesisDataSource)
    spark.dataSource.register(AsyncSinkDataSource)
    listen_if_possible(spark)


def warn_of_dropped_rows(spark: SparkSession) -> None:
    """Logs a warning when Spark drops rows of the source as later than a query's watermark.

    Spark drops them without a word. The warning comes once a minute at most, to the logger ``sluice`` of the
    process that calls this, for all queries of this session; another call does nothing.
    ``docs/watermarks.md`` says what helps. With Spark Connect, end with ``spark.stop()``: Spark's thread that
    waits for events may keep the application alive.
    """
    from sluice.spark.dropped_rows import listen  # noqa: PLC0415 - imports Spark

    listen(spark)
