"""The query server: a process beside the driver, that holds a query's token bucket.

All tasks of the query take from it (`tokenBucketScope=query`). The sink uses it; nothing here knows the sink.

The first writer of a query starts it, and later ones find it again: `launch`, `rendezvous`. Tasks talk to it
over TCP: `connection`, `protocol`. `server` has the sockets. What it answers is decided without IO, in
`service` and `bucket`.
"""
