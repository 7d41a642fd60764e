"""Makes the format ``kinesis-efo`` known to Spark, which imports every module named ``pyspark_*``.

A module that fails to import there would take every other such format with it: rather than that, this
one goes without its own.
"""

__all__ = ["DefaultSource"]

try:
    from sluice.spark.source import KinesisDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - see above
    import warnings

    warnings.warn(f"format kinesis-efo is not available: {error!r}", RuntimeWarning, stacklevel=2)
    __all__.clear()
