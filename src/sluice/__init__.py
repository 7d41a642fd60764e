"""Amazon Kinesis source and asynchronous batch sink for PySpark."""

from __future__ import annotations
