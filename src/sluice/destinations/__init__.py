"""Destinations of the async sink, one package each; `registry` finds them by name."""

from sluice.destinations.registry import DestinationClass, read_sink
from sluice.sink.setup import SinkSetup

__all__ = ["DestinationClass", "SinkSetup", "read_sink"]
