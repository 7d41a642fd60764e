"""The destination ``dynamodb``: Amazon DynamoDB tables."""

from sluice.destinations.dynamodb.destination import DynamoDbDestination
from sluice.destinations.dynamodb.converter import DynamoDbRowConverter, DynamoDbWrite

__all__ = ["DynamoDbDestination", "DynamoDbRowConverter", "DynamoDbWrite"]
