"""Bytes of requests and answers, decoded faster than the SDK does."""
