"""Registers the format ``kinesis-efo``: Spark imports every module named ``pyspark_*`` for its
``DefaultSource``.

If one of these modules cannot be imported, Spark loses the formats of all of them. So this module warns
instead and has no ``DefaultSource``.
"""

__all__ = ["DefaultSource"]

try:
    from sluice.spark.source import KinesisDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - see above
    import warnings

    warnings.warn(f"format kinesis-efo is not available: {error!r}", RuntimeWarning, stacklevel=2)
    __all__.clear()
