"""Reads the ranges of a batch in tasks."""
