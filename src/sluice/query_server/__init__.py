"""The query server: a process on the driver host that holds token buckets.

With `tokenBucketScope=query`, all tasks of a query take their tokens from one bucket. One server holds the
buckets of all queries of a Spark application. `launch` finds or starts it, `server` has the sockets, `bucket`
decides without IO, and `protocol` has the messages. The client is `sluice.sink.shared_bucket`.
"""
