"""The format ``kinesis-efo``."""

from __future__ import annotations

from sluice.spark.data_source import data_source

__all__ = ["KinesisDataSource"]

KinesisDataSource = data_source("sluice.kinesis.source:KinesisSource", name="kinesis-efo")
