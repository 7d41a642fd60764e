"""Splits, positions and offsets, with their forms in JSON."""
