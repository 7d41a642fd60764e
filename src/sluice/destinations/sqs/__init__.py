"""The destination ``sqs``: Amazon Simple Queue Service, standard and FIFO queues."""

from sluice.destinations.sqs.converter import SqsMessage, SqsRowConverter
from sluice.destinations.sqs.destination import SqsDestination

__all__ = ["SqsDestination", "SqsMessage", "SqsRowConverter"]
