"""The destination ``http``: any HTTP endpoint that takes several JSON documents in a request."""

from sluice.destinations.http.converter import HttpRowConverter
from sluice.destinations.http.destination import HttpDestination

__all__ = ["HttpDestination", "HttpRowConverter"]
