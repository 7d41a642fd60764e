"""Registers the formats with a session, after checking that they can work there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sluice.environment import PYSPARK_PYTHON, explain_workers, lookup_python, probe_python
from sluice.errors import SluiceError
from sluice.spark.dynamodb_streams import DynamoDbStreamsDataSource
from sluice.spark.sink import AsyncSinkDataSource
from sluice.spark.source import KinesisDataSource

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.datasource import DataSource

__all__ = ["register_formats"]

_ALREADY_THERE: Final = "DATA_SOURCE_ALREADY_EXISTS"


def register_formats(spark: SparkSession) -> None:
    """Registers the formats with a session, unless Spark finds them by itself in the same Python.

    Raises:
        SluiceError: Spark would run them in a Python without Sluice. The message explains what to set.
    """
    _check_workers(spark)
    _activate(spark)
    for source in (KinesisDataSource, AsyncSinkDataSource, DynamoDbStreamsDataSource):
        if not _is_found(spark, source.name()):
            _register(spark, source)


def _is_found(spark: SparkSession, name: str) -> bool:
    """Whether registration is unnecessary. Spark would log a warning for it, and again for each query."""
    if not isinstance(spark, SparkSession):
        return False
    context = spark.sparkContext
    if context._python_includes or context.pythonExec != lookup_python(os.environ):  # noqa: SLF001
        return False
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001
        return bool(manager.dataSourceExists(name))
    except Exception:  # noqa: BLE001 - some platforms forbid such calls, each in its own way
        return False


def _register(spark: SparkSession, source: type[DataSource]) -> None:
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark 4.0 rejects a format that it has found; later versions replace it.
        if _ALREADY_THERE not in str(error):
            raise


def _activate(spark: SparkSession) -> None:
    """Makes the session active in the calling thread.

    Spark looks up the format of a write in the active session, which a thread of the program may lack.
    createDataFrame, a public call, sets it.
    """
    if isinstance(spark, SparkSession):
        spark.createDataFrame([], "nothing int")


def _check_workers(spark: SparkSession) -> None:
    if not isinstance(spark, SparkSession):
        return  # Spark Connect: the server's Python is out of reach
    context = spark.sparkContext
    problem = explain_workers(
        {PYSPARK_PYTHON: context.pythonExec}, partial(probe_python, search_path=_brought(context))
    )
    if problem is not None:
        raise SluiceError(problem)


def _brought(context: SparkContext) -> Sequence[str]:
    """Returns the paths that ``--py-files`` and ``addPyFile`` have added for the workers."""
    from pyspark import SparkFiles  # noqa: PLC0415 - pyspark-client has no such thing

    root = Path(SparkFiles.getRootDirectory())
    names = context._python_includes or ()  # noqa: SLF001 - PySpark has no public name for it
    return [str(root), *(str(root / name) for name in names)]
