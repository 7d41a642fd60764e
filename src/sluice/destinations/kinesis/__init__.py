"""The destination ``kinesis``: Kinesis Data Streams."""

from sluice.destinations.kinesis.destination import KinesisStreamsDestination
from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter

__all__ = ["KinesisEntry", "KinesisRowConverter", "KinesisStreamsDestination"]
