"""The destination ``kinesis``: Kinesis Data Streams."""

from sluice.destinations.kinesis.converter import KinesisEntry, KinesisRowConverter
from sluice.destinations.kinesis.destination import KinesisStreamsDestination

__all__ = ["KinesisEntry", "KinesisRowConverter", "KinesisStreamsDestination"]
