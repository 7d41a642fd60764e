"""Runs the sinks and the source against servers that others wrote: `make foreign`."""
