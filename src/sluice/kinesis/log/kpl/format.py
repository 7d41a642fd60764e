"""The format of aggregated records: many user records in one record, as the Kinesis Producer Library writes.

https://github.com/awslabs/amazon-kinesis-producer/blob/master/aggregation-format.md: a magic number of four
bytes, a protobuf message, and the MD5 checksum of that message::

    message AggregatedRecord {
      repeated string partition_key_table = 1;
      repeated string explicit_hash_key_table = 2;
      repeated Record records = 3;
    }
    message Record {
      required uint64 partition_key_index = 1;
      optional uint64 explicit_hash_key_index = 2;
      required bytes data = 3;
      repeated Tag tags = 4;
    }

This package reads and writes it without the protobuf runtime, because Spark brings its own version.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CHECKSUM_SIZE",
    "DATA",
    "HASH_KEY_INDEX",
    "HASH_KEY_TABLE",
    "MAGIC",
    "PARTITION_KEY_INDEX",
    "PARTITION_KEY_TABLE",
    "PRODUCER_LIBRARY_KEY",
    "RECORDS",
]

MAGIC: Final = b"\xf3\x89\x9a\xc2"
CHECKSUM_SIZE: Final = 16

PRODUCER_LIBRARY_KEY: Final = "a"
"""The partition key that the Kinesis Producer Library gives all aggregated records; it routes by hash key."""

# The byte that each field starts with: its number, and whether a varint or a length follows.
PARTITION_KEY_TABLE: Final = 0x0A
HASH_KEY_TABLE: Final = 0x12
RECORDS: Final = 0x1A
PARTITION_KEY_INDEX: Final = 0x08
HASH_KEY_INDEX: Final = 0x10
DATA: Final = 0x1A
