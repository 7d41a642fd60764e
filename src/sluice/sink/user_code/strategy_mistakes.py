"""Mistakes in what a rate limiting strategy answers, named before the writer calculates with it."""

from __future__ import annotations

from numbers import Real
from typing import Any

from sluice.errors import SluiceError

__all__ = ["StrategyMistakeError", "checked_number"]


class StrategyMistakeError(SluiceError, TypeError):
    """A rate limiting strategy answered something else than a number: it would do so again."""


def checked_number(answer: Any, asked: str, name: str) -> Any:
    """What a strategy answered, if it is a number.

    Args:
        answer: the strategy's.
        asked: the attribute or method that it comes from.
        name: the destination's, for messages.

    Raises:
        StrategyMistakeError: it is none. The message does not show it.
    """
    if isinstance(answer, Real):
        return answer
    given = "None" if answer is None else f"a value of type {type(answer).__name__}"
    raise StrategyMistakeError(
        f"{name}: {asked} of the rate limiting strategy is {given}: allowed is a number"
    )
