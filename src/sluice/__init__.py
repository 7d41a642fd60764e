"""Amazon Kinesis source and asynchronous batch sink for PySpark.

``pip install`` alone makes the formats ``kinesis-efo`` and ``async-sink`` known to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import DataLossError, InvalidRecordError, OptionError, ServiceError, SluiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DataLossError", "InvalidRecordError", "OptionError", "ServiceError", "SluiceError", "register"]


def register(spark: SparkSession) -> None:
    """Registers both formats by hand, for a session that did not find them by itself."""
    from sluice.spark.sink import AsyncSinkDataSource  # noqa: PLC0415 - Spark is imported where it is used
    from sluice.spark.source import KinesisDataSource  # noqa: PLC0415

    spark.dataSource.register(KinesisDataSource)
    spark.dataSource.register(AsyncSinkDataSource)
