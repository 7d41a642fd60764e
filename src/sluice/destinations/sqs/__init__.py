"""The destination ``sqs``: Amazon Simple Queue Service, standard and FIFO queues."""

from sluice.destinations.sqs.destination import SqsDestination
from sluice.destinations.sqs.converter import SqsMessage, SqsRowConverter

__all__ = ["SqsDestination", "SqsMessage", "SqsRowConverter"]
