"""Logging in the Python processes that Spark's JVM starts on the driver host.

Spark does not configure logging there, so Python would drop messages below WARNING. Their stderr appears
in the driver's stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Final

__all__ = ["configure_driver_log"]

_COLLECTED: Final = "PYSPARK_SPARK_SESSION_UUID"
"""Set by Spark in processes with collected logs (``spark.sql.pyspark.worker.logging.enabled``)."""


def configure_driver_log() -> None:
    """Writes Sluice's messages from INFO on to stderr, or to Spark's worker logs if Spark collects them.

    Does nothing if the application has configured logging.
    """
    root = logging.getLogger("sluice")
    if root.hasHandlers():
        if _COLLECTED in os.environ and root.level == logging.NOTSET:
            root.setLevel(logging.INFO)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    root.propagate = False
    if root.level == logging.NOTSET:
        root.setLevel(logging.INFO)
