"""The destination ``firehose``: Amazon Data Firehose."""

from sluice.destinations.firehose.destination import FirehoseDestination, FirehoseRowConverter

__all__ = ["FirehoseDestination", "FirehoseRowConverter"]
