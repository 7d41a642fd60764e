"""One token bucket for all tasks of a query (`tokenBucketScope=query`), apart from the sink that uses it.

A bucket server beside the driver holds the tokens. The first writer of a query starts it, and later ones find
it again: `launch`, `rendezvous`. Tasks ask it over TCP before they send: `line`. What it gives to whom is
decided in `bucket`, without IO; `service` speaks the `protocol`, and `server` has the sockets.
"""
