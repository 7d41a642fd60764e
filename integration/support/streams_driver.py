"""A driver of a query of DynamoDB Streams, for tests that kill it. See ``replay_driver.py``."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from integration.support.replay_driver import DriverPlan, run


def read_changes(spark: SparkSession, endpoint: str, table: str, **options: str) -> DataFrame:
    """A streaming read of a table's stream, from the horizon on unless `options` say otherwise."""
    base = {
        "tableName": table,
        "startingPosition": "TRIM_HORIZON",
        "endpointUrl": endpoint,
        "region": "us-east-1",
    }
    if "initialSnapshot" in options:
        del base["startingPosition"]
    return spark.readStream.format("dynamodb-streams").options(**{**base, **options}).load()


def main() -> None:
    plan = DriverPlan.from_json(sys.argv[1])
    # Of a table that is scanned first, the changes are wanted, too.
    data = "to_json(struct(eventName, keys, newImage))" if "initialSnapshot" in plan.options else "keys"
    run(
        plan,
        lambda spark: read_changes(spark, plan.endpoint, plan.stream, **plan.options).selectExpr(
            "coalesce(shardId, '') AS shardId",
            "coalesce(sequenceNumber, '') AS sequenceNumber",
            "0L AS subSequenceNumber",
            f"CAST({data} AS BINARY) AS data",
        ),
    )


if __name__ == "__main__":
    main()
