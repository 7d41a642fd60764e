"""What a target of the course is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import boto3
from botocore.config import Config
from pyspark.sql import DataFrame

from integration.foreign.rows import Row, expected
from integration.support.kinesis import REGION


class Target(ABC):
    """One place to write to; `directory`: for files on this host."""

    source: Mapping[str, str] = {}
    """Options of the source `kinesis-efo`; empty: Spark makes the rows."""
    is_once: ClassVar[bool] = True
    """Whether a row that is written again is there once."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.endpoint = endpoint
        self.directory = directory

    @staticmethod
    def shape(frame: DataFrame) -> DataFrame:
        """The columns that the destination takes."""
        return frame

    @abstractmethod
    def prepare(self) -> dict[str, str]:
        """Makes the target, and returns the options of the sink. Is called again if it fails."""

    @abstractmethod
    def read(self) -> Iterable[Row]:
        """All rows of the target."""

    def expected(self, number: int) -> Row:
        """The row with this number, as `read` gives it."""
        return expected(number)

    def check(self) -> list[str]:
        """What else is wrong."""
        return []

    def aws(self, **more: str) -> dict[str, str]:
        return {"endpointUrl": self.endpoint, "region": REGION, **more}

    def client(self, service: Any) -> Any:
        retries: Any = {"total_max_attempts": 5}
        return boto3.client(service, endpoint_url=self.endpoint, config=Config(retries=retries))
