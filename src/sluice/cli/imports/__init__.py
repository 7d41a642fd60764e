"""The positions of other consumers of Kinesis, read from what they store."""
