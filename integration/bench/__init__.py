"""Rough figures of throughput against an embedded Kinesis. ``python -m integration.bench``"""
