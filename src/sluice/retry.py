"""Retries with full jitter.

The wait after failed attempt n, counted from 0, is ``random() * min(max, base * exponent**n)``, as in
FLIP-128; https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/ explains why.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from sluice.errors import ServiceError, SluiceError

if TYPE_CHECKING:
    import tenacity

__all__ = ["UNLIMITED", "Backoff", "Retrier", "patient"]

T = TypeVar("T")

UNLIMITED: Final = sys.maxsize
"""A number of retries: until `Backoff.give_up_after`."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How often an operation is retried, and how long the waits are (`base` and `max` in seconds).

    Attributes:
        throttle_patience: seconds of waits in total, during which throttled attempts do not use up retries.
        repeats_throttled: whether throttled attempts are retried.
        give_up_after: seconds since the start of the first attempt, after which no other attempt starts.
    """

    max_retries: int
    base: float
    max: float
    exponent: float
    throttle_patience: float = 0.0
    repeats_throttled: bool = True
    give_up_after: float = math.inf

    def ceiling(self, attempt: int) -> float:
        """The longest wait after failed attempt number `attempt`, counted from 0."""
        try:
            return min(self.max, self.base * self.exponent**attempt)
        except OverflowError:
            return self.max


def patient(seconds: float) -> Backoff:
    """The backoff of tasks and commits: any number of retries within `seconds`."""
    return Backoff(UNLIMITED, base=0.2, max=5.0, exponent=2.0, give_up_after=seconds)


@dataclass(frozen=True)
class Retrier:
    """Calls a function until it succeeds, its error is not retryable, or the retries are used up.

    Args:
        sleep: waits a number of seconds. It may raise to end `call`, as when a task stops.
        jitter: returns a random number in [0, 1).
        clock: monotonic seconds.
    """

    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic

    def call(self, backoff: Backoff, function: Callable[[], T]) -> T:
        """Returns what `function` returns.

        Raises:
            SluiceError: the last error of `function`: it is not retryable, or no retry is left.
        """
        import tenacity  # noqa: PLC0415 - processes that only parse options do not need it

        def wait(state: tenacity.RetryCallState) -> float:
            return self.jitter() * backoff.ceiling(state.attempt_number - 1)

        throttled, begun = 0, self.clock()

        def is_over(state: tenacity.RetryCallState) -> bool:
            nonlocal throttled
            error = state.outcome.exception() if state.outcome else None
            is_throttled = isinstance(error, ServiceError) and error.throttling
            throttled += is_throttled
            if is_throttled and not backoff.repeats_throttled:
                return True
            if self.clock() - begun >= backoff.give_up_after:
                return True
            if state.attempt_number - throttled > backoff.max_retries:
                return True
            return state.attempt_number > backoff.max_retries and state.idle_for >= backoff.throttle_patience

        retrying = tenacity.Retrying(
            stop=is_over,
            wait=wait,
            retry=tenacity.retry_if_exception(_is_retryable),
            sleep=self.sleep,
            before_sleep=functools.partial(_log_retry, backoff),
            reraise=True,
        )
        result = retrying(function)
        if backoff.max_retries == UNLIMITED and (retries := retrying.statistics["attempt_number"] - 1):
            _log.warning("succeeded after %.0f s and %d retries", self.clock() - begun, retries)
        return result


def _log_retry(backoff: Backoff, state: tenacity.RetryCallState) -> None:
    """Logs each retry if their number is limited, else only the first one."""
    error = state.outcome.exception() if state.outcome else None
    pause = state.next_action.sleep if state.next_action else 0.0
    number, most = state.attempt_number, backoff.max_retries
    if most == UNLIMITED:
        if number == 1:
            _log.warning("retrying for up to %.0f s: %s", backoff.give_up_after, error)
    elif number <= most:
        _log.info("retry %d of at most %d in %.3f s: %s", number, most, pause, error)
    elif number == most + 1:
        patience = backoff.throttle_patience
        _log.warning("throttled; trying for up to %.0f s, next in %.3f s: %s", patience, pause, error)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, SluiceError) and error.retryable
