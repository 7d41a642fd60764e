"""Reads by enhanced fan-out: the service pushes records to a consumer of the query's own.

The query registers the consumer when it starts, and deregisters it when it stops. AWS charges for the time
between.
"""

import tempfile
import threading

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
seen = threading.Event()


def show(batch, batch_id):
    rows = batch.selectExpr("partitionKey", "string(data) AS click").take(3)
    if rows:
        print(f"batch {batch_id}: {batch.count()} records, the first of them:", *rows, sep="\n  ")
        seen.set()


query = (
    spark.readStream.format("kinesis-efo")
    .option("streamName", "clicks")
    .option("region", "eu-west-1")
    .option("startingPosition", "TRIM_HORIZON")
    .option("consumerName", "example-fan-out")
    .load()
    .writeStream.foreachBatch(show)
    .option("checkpointLocation", tempfile.mkdtemp())
    .start()
)
while query.isActive and not seen.wait(1):
    pass
query.stop()
