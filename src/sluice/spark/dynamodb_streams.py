"""The format ``dynamodb-streams``."""

from __future__ import annotations

from sluice.spark.data_source import data_source

__all__ = ["DynamoDbStreamsDataSource"]

DynamoDbStreamsDataSource = data_source(
    "sluice.dynamodb_streams.source:DynamoDbStreamsSource", name="dynamodb-streams"
)
