"""Sources of Amazon Kinesis and DynamoDB Streams and an asynchronous batch sink for PySpark.

``pip install`` registers the formats ``kinesis-efo``, ``dynamodb-streams`` and ``async-sink`` with Spark.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sluice.errors import (
    CommitError,
    DataLossError,
    InvalidRecordError,
    OptionError,
    ServiceError,
    SluiceError,
    SourceRuleError,
    SparkVersionError,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

    from sluice.source import Source

__version__ = "0.1.0"

__all__ = [
    "CommitError",
    "DataLossError",
    "InvalidRecordError",
    "OptionError",
    "ServiceError",
    "SluiceError",
    "SourceRuleError",
    "SparkVersionError",
    "committed_files",
    "data_source",
    "register",
    "warn_of_dropped_rows",
]


def committed_files(path: str, *, scheme: str = "s3", **connection: str) -> list[str]:
    """Lists the files of all committed epochs that destination ``files`` or ``s3`` has written below a path.

    Args:
        path: the sink's option ``path``: ``s3://bucket/prefix`` or a directory.
        scheme: of the returned URLs in S3: ``s3a`` for Hadoop's own client.
        connection: connection options by name, such as ``region="eu-west-1"``.

    Returns:
        The files, epoch by epoch: URLs, or paths if `path` is a directory. Other files in it are not
        committed.

    Raises:
        OptionError: the path or a connection option is not valid.
        ServiceError: the store refuses a call.
        CommitError: a manifest cannot be read.
    """
    from sluice.destinations.files.committed_files import list_committed  # noqa: PLC0415 - imports the SDK

    return list_committed(path, scheme, connection)


def data_source(source: type[Source] | str, *, name: str | None = None) -> type[DataSource]:
    """Makes Spark's ``DataSource`` class of a source.

    ``spark.dataSource.register(sluice.data_source(MySource))`` registers it with a session. A package makes
    its format known on installation by a top-level module whose name starts with ``pyspark_``::

        import sluice

        DefaultSource = sluice.data_source("my_package.source:MySource", name="my-format")

    Args:
        source: the class, or ``package.module:Name``, which is imported when a query uses the format.
        name: of the format; required if `source` is text. None: the class' ``name``.

    Raises:
        OptionError: there is no name.
        SparkVersionError: PySpark is missing, or older than 4.0.
    """
    from sluice.spark.data_source import data_source as make  # noqa: PLC0415 - imports Spark

    return make(source, name=name)


def register(spark: SparkSession) -> None:
    """Registers the formats, and functions for SQL, with a session.

    The functions of `sluice.functions` are named ``sluice_decompress`` and so on. If your program
    writes from a thread that it started, call this function in that thread first.

    Also calls `warn_of_dropped_rows`, except with Spark Connect.

    Raises:
        SluiceError: Spark runs data sources in a Python without Sluice. The message names the setting that
            helps. Not checked with Spark Connect, whose server runs them.
        SparkVersionError: PySpark is missing, or older than 4.0.
    """
    from sluice.functions import register_functions  # noqa: PLC0415 - imports Spark
    from sluice.spark.dropped_rows import listen_if_possible  # noqa: PLC0415
    from sluice.spark.registration import register_formats  # noqa: PLC0415

    register_formats(spark)
    register_functions(spark)
    listen_if_possible(spark)


def warn_of_dropped_rows(spark: SparkSession) -> None:
    """Logs a warning when Spark drops rows of the source because they are later than a query's watermark.

    Spark itself does not report them. The logger ``sluice`` of this process gets at most one warning a
    minute, for all queries of the session. Further calls have no effect. With Spark Connect, end the
    application with ``spark.stop()``: Spark's event thread may keep it alive.
    """
    from sluice.spark.dropped_rows import listen  # noqa: PLC0415 - imports Spark

    listen(spark)


def _warn_if_spark_will_not_find_it() -> None:
    """Logs what to set if Spark would not find the formats: its own error has 200 lines and does not say.

    Does nothing in processes that Spark started, without PySpark, and in clients of Spark Connect.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name.startswith(("pyspark.", "sluice.")):
        return
    if not hasattr(sys.modules.get("pyspark"), "SparkContext"):  # which pyspark-client lacks
        return
    import logging  # noqa: PLC0415 - the modules below are for this alone
    import os  # noqa: PLC0415
    from functools import partial  # noqa: PLC0415

    from sluice.environment import explain_lookup, probe_python, sent_with_py_files  # noqa: PLC0415

    log = logging.getLogger(__name__)
    if os.environ.get("SPARK_REMOTE"):
        return
    try:
        sent = sent_with_py_files()
        problem = explain_lookup(os.environ, partial(probe_python, without=sent), is_sent=bool(sent))
    except Exception:  # `import sluice` must succeed without this advice
        log.debug("the Python that Spark asks was not found out", exc_info=True)
        return
    if problem is not None:
        log.warning(problem)


_warn_if_spark_will_not_find_it()
