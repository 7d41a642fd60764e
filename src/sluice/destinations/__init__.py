"""Destinations of the async sink, one module each, and how they are found by name."""

from sluice.destinations.registry import DestinationClass, destination_class

__all__ = ["DestinationClass", "destination_class"]
