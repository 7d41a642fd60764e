"""What HTTP statuses and errors of rows mean: accepted, refused for load, retried, refused for good."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from sluice.options import Kind

__all__ = ["ERRORS", "STATUSES", "Rule", "StatusRules", "Statuses", "Verdict", "statuses"]

Statuses: TypeAlias = tuple[range, ...]
Verdict: TypeAlias = Literal["accepted", "throttled", "retried", "rejected", "fatal"]
"""``throttled``: refused for load. ``retried``: failed otherwise, and may be accepted later. ``rejected``:
will never be accepted. ``fatal``: the endpoint will accept no row."""

_STATUS: Final = re.compile(r"([1-5])(?:(\d\d)|xx)", re.IGNORECASE)


def statuses(text: str) -> Statuses:
    """``2xx, 409`` as ranges. Raises ValueError for anything else."""
    ranges = []
    for part in text.split(","):
        match = _STATUS.fullmatch(part.strip())
        if match is None:
            raise ValueError(text)
        first = int(match[1] + (match[2] or "00"))
        ranges.append(range(first, first + (1 if match[2] else 100)))
    return tuple(ranges)


STATUSES: Final[Kind[Statuses]] = Kind("statuses", "HTTP statuses such as 429, 5xx", statuses)


def _errors(text: str) -> frozenset[str]:
    words = frozenset(word.strip().lower() for word in text.split(","))
    if "" in words:
        raise ValueError(text)
    return words


ERRORS: Final[Kind[frozenset[str]]] = Kind("errors", "errors of rows such as conflict, forbidden", _errors)


class Rule(NamedTuple):
    """What some statuses mean. `given`: given by the user; takes precedence over a default."""

    verdict: Verdict
    statuses: Statuses
    given: bool


class StatusRules:
    """Classifies statuses. A single status takes precedence over a class such as 5xx, in any rule.

    Args:
        rules: what statuses mean.
        errors: what errors of rows mean, in lower case.
    """

    def __init__(self, rules: Iterable[Rule], errors: Mapping[str, Verdict] | None = None) -> None:
        self._errors = errors or {}
        self._ranges = sorted(
            ((each, rule) for rule in rules for each in rule.statuses),
            key=lambda pair: (len(pair[0]), not pair[1].given),
        )

    def verdict(self, status: int) -> Verdict | None:
        """What `status` means; None if no rule has it."""
        return next((rule.verdict for each, rule in self._ranges if status in each), None)

    def row_verdict(self, status: int | None, error: str) -> Verdict | None:
        """What a row's result means: its error in any case, or its status; None if no rule has either.

        Args:
            status: None: the row was refused without a status.
            error: in the endpoint's words; empty if there is none.
        """
        named = self._errors.get(error.strip().lower())
        return named or ("retried" if status is None else self.verdict(status))
