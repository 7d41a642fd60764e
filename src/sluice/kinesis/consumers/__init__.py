"""Consumers of enhanced fan-out: which exist, and which belong to the query."""
