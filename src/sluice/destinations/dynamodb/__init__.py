"""The destination ``dynamodb``: Amazon DynamoDB tables."""

from sluice.destinations.dynamodb.converter import DynamoDbRowConverter, DynamoDbWrite
from sluice.destinations.dynamodb.destination import DynamoDbDestination

__all__ = ["DynamoDbDestination", "DynamoDbRowConverter", "DynamoDbWrite"]
