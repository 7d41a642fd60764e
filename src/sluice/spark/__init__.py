"""Spark's interfaces in front of the library.

Requires PySpark, which ``pip install pyspark-sluice`` does not install: a second PySpark next to
``pyspark-client`` or a cluster's own would do harm.
"""

from __future__ import annotations

from sluice.environment import minimum_pyspark
from sluice.errors import SparkVersionError

__all__: list[str] = []


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: PLC0415 - it may not be there
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        version = None
    else:
        version = pyspark.__version__
    if problem := minimum_pyspark(version):
        raise SparkVersionError(problem)


_require_pyspark()
