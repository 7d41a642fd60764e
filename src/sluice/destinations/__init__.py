"""Destinations of the async sink, one package or module each, and how they are found by name."""

from sluice.destinations.registry import DestinationClass, SinkSetup, read_sink

__all__ = ["DestinationClass", "SinkSetup", "read_sink"]
