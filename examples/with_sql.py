"""The same in SQL: a view of a stream, a table to write to, and an insert."""

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()

spark.sql("""
    CREATE OR REPLACE TEMPORARY VIEW clicks USING `kinesis-efo`
    OPTIONS (streamName 'clicks', region 'eu-west-1', startingPosition 'TRIM_HORIZON')
""")
spark.sql("CREATE TABLE IF NOT EXISTS totals (data STRING, partitionKey STRING) USING `async-sink`")
spark.sql("""
    INSERT INTO totals WITH (destination 'kinesis', streamName 'totals', region 'eu-west-1')
    SELECT to_json(named_struct('section', section, 'clicks', count(*))), section
    FROM (SELECT get_json_object(string(data), '$.section') AS section FROM clicks)
    GROUP BY section
""")
spark.sql("""
    CREATE OR REPLACE TEMPORARY VIEW written USING `kinesis-efo`
    OPTIONS (streamName 'totals', region 'eu-west-1', startingPosition 'TRIM_HORIZON')
""")
spark.sql("SELECT string(data) AS total FROM written ORDER BY total").show(truncate=False)
