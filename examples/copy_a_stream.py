"""Reads a stream, changes its records and writes them to another one: all there is, and then it ends.

Without the trigger it runs until it is stopped. Started again with the same checkpoint, it resumes where
it left off.
"""

import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

query = (
    spark.readStream.format("kinesis-efo")
    .option("streamName", "clicks")
    .option("region", "eu-west-1")
    .option("startingPosition", "TRIM_HORIZON")
    .load()
    .selectExpr("upper(string(data)) AS data", "partitionKey")
    .writeStream.format("async-sink")
    .option("destination", "kinesis")
    .option("streamName", "clicks-upper")
    .option("region", "eu-west-1")
    .option("checkpointLocation", tempfile.mkdtemp())  # a place that lasts, in an application
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"{query.lastProgress.numInputRows} records copied to stream clicks-upper")
