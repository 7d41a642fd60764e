"""The query server: a process beside the driver, by which the tasks of a query share a destination.

It holds one token bucket for all tasks of a query (`tokenBucketScope=query`), or compares their paces
(`aimdScope=query`). The sink uses it; nothing here knows the sink.

The first writer of a query starts it, and later ones find it again: `launch`, `rendezvous`. Tasks talk to it
over TCP: `connection`, `protocol`. `server` has the sockets. What it answers is decided without IO: in
`service` and `bucket` for tokens, in `pace_service` for paces.
"""
