"""Where other consumers of Kinesis have come to, read from what they keep."""
