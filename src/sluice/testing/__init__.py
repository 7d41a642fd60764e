"""Tests a custom source in seconds, without Spark. ``docs/custom-sources.md`` shows how.

The histories of `histories` need Hypothesis: ``pip install 'pyspark-sluice[testing]'``.
"""

from sluice.testing.machine import Subject, check_history, histories
from sluice.testing.memory_log import MemoryLog
from sluice.testing.memory_source import MemorySource
from sluice.testing.runner import QueryRunner

__all__ = ["MemoryLog", "MemorySource", "QueryRunner", "Subject", "check_history", "histories"]
