"""The options of how an operation is retried. FLIP-128 has them for each operation of Kinesis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.options import Option, OptionValues, duration, integer, number
from sluice.retry import Backoff

__all__ = ["BackoffOptions"]


@dataclass(frozen=True, slots=True)
class BackoffOptions:
    """The four backoff options of one operation."""

    retries: Option[int]
    base: Option[float]
    max: Option[float]
    exponent: Option[float]

    @classmethod
    def declare(cls, operation: str, default: Backoff) -> BackoffOptions:
        """The options of an operation (``GetRecords``), with their defaults."""
        prefix = operation[0].lower() + operation[1:]

        def time(name: str, seconds: float, text: str) -> Option[float]:
            return Option(f"{prefix}{name}", duration(), seconds, text, shown_default=_shown(seconds))

        return cls(
            Option(
                f"{prefix}MaxRetries",
                integer(0),
                default.max_retries,
                f"How often a failed `{operation}` is retried.",
            ),
            time("BackoffBase", default.base, f"Longest wait before the first retry of `{operation}`."),
            time("BackoffMax", default.max, f"Longest wait before any retry of `{operation}`."),
            Option(
                f"{prefix}BackoffExponent",
                number(1.0),
                default.exponent,
                f"How the wait grows from retry to retry of `{operation}`.",
            ),
        )

    @property
    def all(self) -> tuple[Option[Any], ...]:
        return (self.retries, self.base, self.max, self.exponent)

    def read(self, values: OptionValues, *, throttle_patience: float = 0.0) -> Backoff:
        """The backoff that a user's options make.

        Args:
            throttle_patience: see `Backoff` (seconds). A retry count that the user sets also limits the
                retries of throttled attempts.
        """
        return Backoff(
            values.require(self.retries),
            values.require(self.base),
            values.require(self.max),
            values.require(self.exponent),
            0.0 if values.given(self.retries) else throttle_patience,
        )


def _shown(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
