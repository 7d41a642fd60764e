"""A bucket on an emulator, looked at with plain boto3, and none of our code but the public helper."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from pyspark.sql import DataFrame, SparkSession

import sluice
from integration.support.kinesis import REGION


class Lake:
    """A fresh bucket, and the data set ``events`` in it.

    `endpoint`: of the server that has the bucket, and of what the sink and the helper talk to unless
    `through` says otherwise.
    """

    def __init__(self, endpoint: str) -> None:
        session: Any = boto3.session.Session()
        self.client = session.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key="test",  # noqa: S106 - emulators take anything
            config=Config(retries={"total_max_attempts": 5}),
        )
        self.endpoint = endpoint
        self.bucket = f"lake-{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=self.bucket)
        self.path = f"s3://{self.bucket}/events"

    def options(self, through: str | None = None, **more: str) -> dict[str, str]:
        """Of the sink."""
        return {
            "destination": "s3",
            "path": self.path,
            "endpointUrl": through or self.endpoint,
            "region": REGION,
            **more,
        }

    def listed(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        return [each["Key"] for each in found]

    def manifests(self) -> list[dict[str, Any]]:
        """Those of all queries, in the order of their keys."""
        # A driver that is killed may leave an empty object, by which it has tried the store.
        keys = [key for key in self.listed() if "/_sluice/" in key and key.endswith(".json")]
        keys = [key for key in keys if "/pending/" not in key]
        return [json.loads(self.get(key)) for key in keys]

    def files(self) -> list[str]:
        """What the public helper lists, as keys."""
        urls = sluice.committed_files(self.path, endpointUrl=self.endpoint, region=REGION)
        start = f"s3://{self.bucket}/"
        assert all(url.startswith(start) for url in urls)
        return [url.removeprefix(start) for url in urls]

    def symlinked(self) -> list[str]:
        """What symlink manifests list, as keys."""
        lists = [self.get(key) for key in self.listed() if "/_symlink_format_manifest/" in key]
        lines = [line for each in lists for line in each.decode().split("\n")[:-1]]
        return [line.removeprefix(f"s3://{self.bucket}/") for line in lines]

    def read(self, spark: SparkSession, directory: Path, schema: str) -> DataFrame:
        """The committed rows, as Spark reads the files that the helper lists.

        There is no S3 client for Hadoop here: the listed files, and no others, are copied to `directory`.
        """
        target = directory / uuid.uuid4().hex
        local = []
        for key in self.files():
            file = target / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.get(key))
            local.append(str(file))
        reader = spark.read.schema(schema).option("basePath", str(target / "events"))
        if not local:
            return spark.createDataFrame([], schema)
        return reader.parquet(*local) if ".parquet" in local[0] else reader.json(local)

    def check_nothing_else(self) -> None:
        """Below the path lie the files that manifests list, the manifests, and nothing in progress."""
        data = {key for key in self.listed() if "/_s" not in key}  # nor symlink manifests
        others = data ^ set(self.files())
        assert not others, others
        assert [key for key in self.listed() if "/pending/" in key] == []
        assert self.uploads() == []

    def get(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body
