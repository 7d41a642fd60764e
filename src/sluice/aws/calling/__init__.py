"""Clients, their options, and calls that are repeated."""
