"""Reads what a stream holds now, and shows it. A batch read: it has no checkpoint, and ends by itself."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

clicks = (
    spark.read.format("kinesis-efo")
    .option("streamName", "clicks")
    .option("region", "eu-west-1")
    .option("startingPosition", "TRIM_HORIZON")
    .load()
)
clicks.selectExpr("shardId", "partitionKey", "string(data) AS click").show(10, truncate=False)
print(f"{clicks.count()} records in stream clicks")
