"""What a run makes in the account, and how all of it is removed again.

Every name begins with one prefix of the run, so `remove` finds what a killed run has left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from integration.support.kinesis import Streams

T = TypeVar("T")

Found = tuple[str, Callable[[], object]]
"""A resource, as the report names it, and what removes it."""

PREFIX: Final = "sluice-verify-"

# US dollars of us-east-1's price list; other regions differ by some tens of percent. Shards are billed by the
# hour, begun hours included.
COSTS: Final = (
    ("Kinesis: 5 shards for an hour", 5 * 0.015),
    ("Kinesis: one fan-out consumer on 4 shards for an hour", 4 * 0.015),
    ("Kinesis: records put and pushed", 0.01),
    ("DynamoDB, SQS, Firehose, S3: requests and storage", 0.02),
)

_WAIT: Final = 300.0  # seconds: a stream, table or delivery stream is there within a minute or two
_POLL: Final = 1.0


class AccountStreams(Streams):
    """The streams of an account, by its own credentials."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.endpoint = client.meta.endpoint_url

    def put(self, stream: str, records: Any) -> list[Any]:
        """Puts (partition key, data) pairs; those that the service refuses are put again."""
        left: Any = [{"PartitionKey": key, "Data": data} for key, data in records]
        end = time.monotonic() + _WAIT
        while left:
            if time.monotonic() > end:
                raise TimeoutError(f"{len(left)} records cannot be put into {stream}")
            answer = self.client.put_records(StreamName=stream, Records=left[:500])
            refused = [
                entry for entry, each in zip(left, answer["Records"], strict=False) if "ErrorCode" in each
            ]
            left = refused + left[500:]
            if refused:
                time.sleep(_POLL)
        return []


class Account:
    """The resources of one run.

    `session`: the credentials and the region; `run`: what is appended to `PREFIX`.
    """

    def __init__(self, session: boto3.session.Session, run: str) -> None:
        self.name = PREFIX + run
        self.region = session.region_name
        config = Config(retries={"mode": "standard", "total_max_attempts": 10})

        def client(service: str) -> Any:
            made: Any = session.client(service, config=config)  # type: ignore[call-overload]
            return made

        self.kinesis, self.dynamodb, self.sqs = client("kinesis"), client("dynamodb"), client("sqs")
        self.s3, self.firehose, self.iam, self.sts = (
            client("s3"),
            client("firehose"),
            client("iam"),
            client("sts"),
        )
        self.streams = AccountStreams(self.kinesis)

    def stream(self, suffix: str, shards: int) -> str:
        """A new stream, active."""
        return self.streams.create(shards, name=f"{self.name}-{suffix}")

    def bucket(self) -> str:
        where = {} if self.region == "us-east-1" else {"LocationConstraint": self.region}
        self.s3.create_bucket(Bucket=self.name, **({"CreateBucketConfiguration": where} if where else {}))
        return self.name

    def table(self) -> str:
        """A new table with key ``id`` (a number) and a stream of its changes, active."""
        self.dynamodb.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )
        self._wait(
            lambda: self.dynamodb.describe_table(TableName=self.name)["Table"]["TableStatus"] == "ACTIVE",
            f"table {self.name}",
        )
        return self.name

    def queue(self) -> str:
        """The URL of a new queue."""
        url: str = self.sqs.create_queue(QueueName=self.name)["QueueUrl"]
        return url

    def delivery_stream(self, bucket: str) -> str:
        """A new delivery stream to the prefix ``firehose/`` of `bucket`, with a role that it assumes."""
        trust = _allow("sts:AssumeRole", Principal={"Service": "firehose.amazonaws.com"})
        role = self.iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
        partition = role.split(":")[1]
        objects = [f"arn:{partition}:s3:::{bucket}", f"arn:{partition}:s3:::{bucket}/*"]
        actions = ["s3:PutObject", "s3:AbortMultipartUpload", "s3:GetBucketLocation", "s3:ListBucket*"]
        policy = _allow(*actions, Resource=objects)
        self.iam.put_role_policy(RoleName=self.name, PolicyName="bucket", PolicyDocument=policy)

        def is_created() -> bool:
            try:
                self.firehose.create_delivery_stream(
                    DeliveryStreamName=self.name,
                    ExtendedS3DestinationConfiguration={
                        "RoleARN": role,
                        "BucketARN": objects[0],
                        "Prefix": "firehose/",
                        "BufferingHints": {"SizeInMBs": 1, "IntervalInSeconds": 60},
                    },
                )
            except ClientError as error:
                if error.response["Error"]["Code"] != "InvalidArgumentException":
                    raise
                return False  # a new role takes some seconds until other services know it
            return True

        def is_active() -> bool:
            answer = self.firehose.describe_delivery_stream(DeliveryStreamName=self.name)
            status: str = answer["DeliveryStreamDescription"]["DeliveryStreamStatus"]
            return status == "ACTIVE"

        self._wait(is_created, f"role {self.name}")
        self._wait(is_active, f"delivery stream {self.name}")
        return self.name

    def left(self) -> list[str]:
        """What of this run is still in the account."""
        return [name for find in self._kinds() for name, _ in find()]

    def remove(self, say: Callable[[str], None]) -> list[str]:
        """Removes what is there of this run. Goes through all of it, whatever fails."""
        failed: list[str] = []

        def attempt(what: str, call: Callable[[], T]) -> T | None:
            try:
                return call()
            except (ClientError, BotoCoreError, TimeoutError) as error:
                failed.append(f"{what}: {error}")
                return None

        def removed(delete: Callable[[], object]) -> bool:
            delete()
            return True

        for find in self._kinds():
            for name, delete in attempt(find.__name__.lstrip("_"), find) or ():
                if attempt(name, partial(removed, delete)):
                    say(f"removed {name}")
        return failed

    def _kinds(self) -> Sequence[Callable[[], list[Found]]]:
        """What finds the resources of each kind; users of others come before them."""
        return (self._streams, self._delivery_streams, self._roles, self._tables, self._queues, self._buckets)

    def _streams(self) -> list[Found]:
        names = self.kinesis.get_paginator("list_streams").paginate().search("StreamNames")
        ours = [name for name in names if name.startswith(f"{self.name}-")]
        return [(f"stream {name}", partial(self._remove_stream, name)) for name in ours]

    def _delivery_streams(self) -> list[Found]:
        if not self._is_there(self.firehose.describe_delivery_stream, DeliveryStreamName=self.name):
            return []
        delete = partial(self.firehose.delete_delivery_stream, DeliveryStreamName=self.name)
        return [(f"delivery stream {self.name}", delete)]

    def _roles(self) -> list[Found]:
        is_there = self._is_there(self.iam.get_role, RoleName=self.name)
        return [(f"role {self.name}", self._remove_role)] if is_there else []

    def _tables(self) -> list[Found]:
        if not self._is_there(self.dynamodb.describe_table, TableName=self.name):
            return []
        return [(f"table {self.name}", partial(self.dynamodb.delete_table, TableName=self.name))]

    def _queues(self) -> list[Found]:
        urls = self.sqs.list_queues(QueueNamePrefix=self.name).get("QueueUrls", [])
        ours = [url for url in urls if url.endswith(f"/{self.name}")]
        return [(f"queue {url}", partial(self.sqs.delete_queue, QueueUrl=url)) for url in ours]

    def _buckets(self) -> list[Found]:
        is_there = self._is_there(self.s3.head_bucket, Bucket=self.name)
        return [(f"bucket {self.name}", self._remove_bucket)] if is_there else []

    def _remove_stream(self, stream: str) -> None:
        def is_deleted() -> bool:
            try:
                self.streams.delete(stream)
            except self.kinesis.exceptions.ResourceInUseException:
                return False  # it is being resharded
            return True

        self._wait(is_deleted, f"stream {stream}")

    def _remove_role(self) -> None:
        for policy in self.iam.list_role_policies(RoleName=self.name)["PolicyNames"]:
            self.iam.delete_role_policy(RoleName=self.name, PolicyName=policy)
        self.iam.delete_role(RoleName=self.name)

    def _remove_bucket(self) -> None:
        uploads = self.s3.list_multipart_uploads(Bucket=self.name).get("Uploads", [])
        for each in uploads:
            self.s3.abort_multipart_upload(Bucket=self.name, Key=each["Key"], UploadId=each["UploadId"])
        for page in self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            for each in page.get("Contents", []):
                self.s3.delete_object(Bucket=self.name, Key=each["Key"])
        self.s3.delete_bucket(Bucket=self.name)

    @staticmethod
    def _is_there(describe: Callable[..., object], **names: str) -> bool:
        try:
            describe(**names)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in (
                HTTPStatus.BAD_REQUEST,
                HTTPStatus.NOT_FOUND,
            ):
                return False
            raise
        return True

    @staticmethod
    def _wait(holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _WAIT
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"{what} is not ready after {_WAIT:g} s")
            time.sleep(_POLL)


def _allow(*actions: str, **of: object) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), **of}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})
