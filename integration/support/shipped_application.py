"""An application as users submit it, which knows nothing of these tests.

``shipped_application.py <endpoint> <from> <to> <directory> <found|imported|registered> [option=value ...]``
writes the records of a stream to another one, until there is a file ``stop`` in the directory.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

endpoint, stream, target, place, formats, *given = sys.argv[1:]
directory = Path(place)
spark = SparkSession.builder.getOrCreate()
if formats != "found":
    import sluice

if formats == "registered":
    sluice.register(spark)
connection = {"region": "us-east-1", "endpointUrl": endpoint}
options = {"startingPosition": "TRIM_HORIZON", **dict(each.split("=", 1) for each in given)}
records = spark.readStream.format("kinesis-efo").options(**connection, streamName=stream, **options).load()
query = (
    records.select("data", "partitionKey")
    .writeStream.format("async-sink")
    .options(destination="kinesis", **connection, streamName=target)
    .option("checkpointLocation", str(directory / "checkpoint"))
    .trigger(processingTime="200 milliseconds")
    .start()
)
while not (directory / "stop").exists():
    query.awaitTermination(1)
    time.sleep(0.1)
query.stop()
print("stopped as asked")
