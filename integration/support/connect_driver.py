"""An application of Spark Connect, for a test that starts it: one session with a server, local to it.

Spark admits no classic session in an application of Connect, so it runs in a separate process. It prints what
it has seen, as JSON.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from integration.support.spark import configuration, prepare_environment


def main(plan: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")  # of pandas and grpc, which Connect needs and we do not
    prepare_environment()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the environment is set

    import sluice  # noqa: PLC0415
    from sluice.functions import decompress  # noqa: PLC0415

    directory = Path(plan["directory"])
    builder = SparkSession.builder.remote("local[2]")
    for key, value in configuration(directory).items():
        if key not in ("spark.master", "spark.app.name"):
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    seen: dict[str, Any] = {"session": type(spark).__module__}
    try:
        seen["found"] = spark.read.format("kinesis-efo").options(**plan["reading"]).load().count()
        sluice.register(spark)
        seen["registered"] = spark.read.format("kinesis-efo").options(**plan["reading"]).load().count()
        packed = gzip.compress(b"packed").hex()
        frame = spark.sql(f"SELECT sluice_decompress(X'{packed}') AS sql, X'{packed}' AS packed")
        row = frame.select("sql", decompress("packed")).first()
        seen["decompressed"] = [bytes(each).decode() for each in row or ()]
        seen["errors"] = [_error(spark, plan, case) for case in ("option", "column", "stream")]
        rows = spark.read.format("kinesis-efo").options(**plan["reading"]).load()
        rows.selectExpr("upper(string(data)) AS data").write.format("async-sink").mode("append").options(
            **plan["writing"]
        ).save()
        seen["batch"] = True
        stream = spark.readStream.format("kinesis-efo").options(**plan["reading"], **plan["consumer"]).load()
        writer = stream.selectExpr("string(data) AS data").writeStream.format("async-sink")
        query = (
            writer.options(**plan["writing"])
            .option("checkpointLocation", tempfile.mkdtemp(dir=directory))
            .start()
        )
        target = {**plan["reading"], **plan["target"]}

        def written() -> int:
            # Loaded anew: with Connect, a DataFrame still covers the same records as when it was first read.
            return int(spark.read.format("kinesis-efo").options(**target).load().count())

        while written() < seen["found"] * 2 and query.isActive:  # the batch's rows and the stream's
            query.awaitTermination(1)
        query.stop()
        seen["stream"] = True
    finally:
        print(json.dumps(seen), flush=True)
        spark.stop()


def _error(spark: Any, plan: dict[str, Any], case: str) -> str:
    try:
        if case == "option":
            spark.read.format("kinesis-efo").options(**plan["reading"], minPartitions="8").load().count()
        elif case == "column":
            frame = spark.sql("SELECT 'x' AS dta")
            frame.write.format("async-sink").mode("append").options(**plan["writing"]).save()
        else:
            options = {**plan["reading"], "streamName": "no-such-stream"}
            spark.read.format("kinesis-efo").options(**options).load().count()
    except Exception as error:  # noqa: BLE001 - what users see of it is what is tested
        return str(error)
    return "no error"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
