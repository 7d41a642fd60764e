"""Reads that fail at random, in histories of any service."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from sluice.errors import ServiceError
from sluice.source.settings import Limits

__all__ = ["FailingReads"]


class FailingReads:
    """The part of a history that fails its reads, and reads again what they have failed.

    Attributes:
        THROTTLED: what the service calls a read that comes too soon.
        rng: decides which reads fail.
        fault_rate: the probability (0 to 1) that one does, with throttling or an expired iterator.
        query: reads the history.
    """

    THROTTLED: ClassVar[str]
    rng: random.Random
    fault_rate: float
    query: Any

    def run_batch(self, limits: Limits, *, crash: bool = False) -> bool | None:
        """Runs a batch. If its task fails, it is read again from the same two offsets, as Spark does.

        Returns:
            Whether there was anything new; None where planning or reading failed.
        """
        logged, read = len(self.query.offsets), len(self.query.batches)
        try:
            return self.query.run_batch(limits, crash=crash) is not None
        except ServiceError as error:
            assert error.retryable  # noqa: PT017 - planning and reading fail, or succeed, in many ways
            if len(self.query.offsets) > max(1, logged) and len(self.query.batches) == read:
                rate, self.fault_rate = self.fault_rate, 0.0
                self.query.batches.append(self.query.read(-1))
                self.fault_rate = rate
            return None

    def fault(self, operation: str, request: object) -> str | None:
        """What a call fails with; None: with nothing."""
        del request
        if operation not in ("GetRecords", "GetShardIterator") or self.rng.random() >= self.fault_rate:
            return None
        if operation == "GetRecords" and self.rng.random() < 0.5:
            return "ExpiredIteratorException"
        return self.THROTTLED
