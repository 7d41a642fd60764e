"""Counts clicks by section and ten seconds. Rows are not dropped for being read late.

`maxDrift` and the watermark have the same duration: docs/read.md says why.
"""

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()

counts = (
    spark.readStream.format("kinesis-efo")
    .option("streamName", "clicks")
    .option("region", "eu-west-1")
    .option("startingPosition", "TRIM_HORIZON")
    .option("maxDrift", "10s")
    .load()
    .withColumn("section", F.get_json_object(F.col("data").cast("string"), "$.section"))
    .withWatermark("approximateArrivalTimestamp", "10 seconds")
    .groupBy(F.window("approximateArrivalTimestamp", "10 seconds"), "section")
    .count()
)
query = (
    counts.writeStream.format("memory")
    .queryName("counts")
    .outputMode("complete")
    .option("checkpointLocation", tempfile.mkdtemp())
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.sql("SELECT window.start, section, count FROM counts ORDER BY start, section").show(truncate=False)
