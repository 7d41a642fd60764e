"""What other Kinesis connectors for Spark call the connection options.

Databricks: https://docs.databricks.com/en/connect/streaming/kinesis.html. awslabs:
https://github.com/awslabs/spark-sql-kinesis-connector.
"""

from __future__ import annotations

from typing import Final

from sluice.aws.calling.connection import (
    ACCESS_KEY,
    ENDPOINT_URL,
    PROFILE,
    REGION,
    ROLE_ARN,
    ROLE_SESSION_NAME,
    SECRET_KEY,
    STS_ENDPOINT_URL,
)
from sluice.option_names import Explained, ForeignName, Taken

__all__ = ["AWSLABS", "CONNECTION_NAMES", "DATABRICKS"]

DATABRICKS: Final = "Databricks"
AWSLABS: Final = "awslabs"

_CREDENTIALS: Final = (
    f"give '{PROFILE.key}', '{ROLE_ARN.key}' or '{ACCESS_KEY.key}', or leave it to the SDK's own chain of "
    "credentials"
)

CONNECTION_NAMES: Final[tuple[ForeignName, ...]] = (
    Taken("awsAccessKey", DATABRICKS, ACCESS_KEY.key),
    Taken("awsSecretKey", DATABRICKS, SECRET_KEY.key),
    Taken("endpoint", DATABRICKS, ENDPOINT_URL.key),
    Taken("stsEndpoint", DATABRICKS, STS_ENDPOINT_URL.key),
    Explained("serviceCredential", DATABRICKS, f"is known to Databricks alone: {_CREDENTIALS}"),
    Taken("kinesis.endpointUrl", AWSLABS, ENDPOINT_URL.key),
    Taken("kinesis.region", AWSLABS, REGION.key),
    Taken("kinesis.kinesisRegion", AWSLABS, REGION.key),
    Taken("kinesis.awsAccessKeyId", AWSLABS, ACCESS_KEY.key),
    Taken("kinesis.awsSecretKey", AWSLABS, SECRET_KEY.key),
    Taken("kinesis.stsRoleArn", AWSLABS, ROLE_ARN.key),
    Taken("kinesis.stsSessionName", AWSLABS, ROLE_SESSION_NAME.key),
    Taken("kinesis.stsEndpointUrl", AWSLABS, STS_ENDPOINT_URL.key),
    Explained("kinesis.credentialProviderClass", AWSLABS, f"names a class in Java: {_CREDENTIALS}"),
    Explained("kinesis.credentialProviderParam", AWSLABS, f"is for a class in Java: {_CREDENTIALS}"),
)
