"""Where the server listens through which tasks of a query compare their paces, and where tasks find it.

Spark knows at which address executors find the driver, and tells tasks, but not the process that makes the
query's writer. So on a cluster tasks fill in the host.
"""

from __future__ import annotations

import re
from typing import Final

from sluice.channels.channel import SPARK_DRIVER
from sluice.query_server.launch import ServerSettings
from sluice.spark_settings import SparkSettings, find_spark_settings

__all__ = ["pace_settings"]

_LOOPBACK: Final = "127.0.0.1"
_ONE_TASK: Final = re.compile(r"local(\[1(,.*)?\])?\Z")
"""Masters that run one task at a time."""


def pace_settings(spark: SparkSettings | None = None) -> ServerSettings | None:
    """The settings of that server; None where no two tasks run at a time.

    Args:
        spark: what is known of Spark's settings; None: they are looked up.
    """
    spark = find_spark_settings() if spark is None else spark
    if spark.master is not None and _ONE_TASK.match(spark.master):
        return None
    if spark.is_local:
        return ServerSettings(None, _LOOPBACK, _LOOPBACK)
    return ServerSettings(None, SPARK_DRIVER, spark.bind or "")
