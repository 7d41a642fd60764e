"""Registers the format ``dynamodb-streams``: Spark imports every module named ``pyspark_*`` for its
``DefaultSource``.

If one of these modules cannot be imported, Spark loses the formats of all of them. So this module warns
instead and has no ``DefaultSource``.
"""

__all__ = ["DefaultSource"]

try:
    from sluice.spark.dynamodb_streams import DynamoDbStreamsDataSource as DefaultSource
except Exception as error:  # noqa: BLE001 - see above
    import warnings

    warnings.warn(f"format dynamodb-streams is not available: {error!r}", RuntimeWarning, stacklevel=2)
    __all__.clear()
