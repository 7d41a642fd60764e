"""Tells a failing endpoint from one that never answered, and so probably has a wrong address."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["FirstContact"]

_PATIENCE: Final = 5.0  # seconds
# Places that have answered this process. Destinations are made anew for every epoch; this set stays.
_answered: Final[set[Hashable]] = set()


class FirstContact:
    """Whether the endpoint of a destination has ever answered.

    Args:
        place: the endpoint, without what may change with every epoch, such as credentials.
        clock: monotonic seconds.
    """

    def __init__(self, place: Hashable, clock: Callable[[], float]) -> None:
        self._place = place
        self._clock = clock
        self._first_call_at: float | None = None

    def started(self) -> None:
        """A call begins."""
        if self._first_call_at is None:
            self._first_call_at = self._clock()

    def answered(self) -> None:
        """Notes that an answer has come, even an error."""
        _answered.add(self._place)

    @property
    def is_given_up(self) -> bool:
        """True from 5 s after the first call, unless any call of this process to the place was answered."""
        if self._place in _answered or self._first_call_at is None:
            return False
        return self._clock() - self._first_call_at >= _PATIENCE
