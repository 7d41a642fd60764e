"""Spark without what its JVM and its workers say, which goes into a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from integration.support.spark import spark_session


@contextlib.contextmanager
def quiet_spark(directory: Path, settings: Mapping[str, str], log: Path) -> Iterator[SparkSession]:
    """A session in `directory`, at log level ERROR."""
    with contextlib.ExitStack() as stack:
        with log.open("wb") as file, _stderr_to(file.fileno()):
            level = {"spark.log.level": "ERROR"}
            spark = stack.enter_context(spark_session(directory, {**level, **settings}))
        yield spark


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Processes started in the block write their errors there, for good."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
