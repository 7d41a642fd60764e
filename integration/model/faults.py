"""Faults on top of the laws: what fails at random, or when a test says so.

A fault is a code of the API (``InternalFailure``, ``ExpiredTokenException``, ``KMSThrottlingException``, …)
or `LOST_ANSWER`. The operation ``PutRecords.record`` means one record of a PutRecords, and
``SubscribeToShard.event`` one event of a subscription, where ``"silence"`` keeps the connection open and
sends nothing any more, and ``"end"`` ends it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from integration.model.errors import ModelError

Callback = Callable[[str, Mapping[str, Any]], ModelError | str | None]
"""Given an operation and its request: the error, or the code, that it fails with; None: it does not."""


class FaultPlan:
    """What fails. Called by the model under its lock.

    `rates`: operation (``"*"`` for each) to code to how often (0 to 1); `callback`: asked first.
    """

    def __init__(
        self,
        rates: Mapping[str, Mapping[str, float]] | None = None,
        *,
        callback: Callback | None = None,
        seed: int = 0,
    ) -> None:
        self._rates = {operation: dict(codes) for operation, codes in (rates or {}).items()}
        self._callback = callback
        self._rng = random.Random(seed)
        self._forced: dict[str, list[ModelError]] = {}
        self.fired: Counter[tuple[str, str]] = Counter()  # operation and code to how often it failed so

    def force(self, operation: str, fault: ModelError | str, *, times: int = 1) -> None:
        """The next `times` calls of an operation fail."""
        error = ModelError(fault) if isinstance(fault, str) else fault
        self._forced.setdefault(operation, []).extend([error] * times)

    def draw(self, operation: str, request: Mapping[str, Any]) -> ModelError | None:
        """The error that this call fails with; None: it does not."""
        error = self._drawn(operation, request)
        if error is not None:
            self.fired[operation, error.code] += 1
        return error

    def _drawn(self, operation: str, request: Mapping[str, Any]) -> ModelError | None:
        if forced := self._forced.get(operation):
            return forced.pop(0)
        if self._callback is not None and (fault := self._callback(operation, request)) is not None:
            return ModelError(fault) if isinstance(fault, str) else fault
        rates = self._rates.get(operation)
        if rates is None and "." not in operation:
            rates = self._rates.get("*")
        if not rates:
            return None
        chance = self._rng.random()
        for code, rate in rates.items():
            if chance < rate:
                return ModelError(code)
            chance -= rate
        return None
