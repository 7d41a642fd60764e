"""The results of commands, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "UsageError", "duration", "table"]


class UsageError(Exception):
    """The command was called in a way that cannot work: exit code 2."""


@dataclass(frozen=True)
class Report:
    """The result of a command.

    Attributes:
        value: what ``--json`` prints in addition to ``command`` and ``ok``. Keys are only ever added.
        text: the output without ``--json``; lines without the last line feed.
        has_problem: a problem was found, or nothing was done: exit code 1.
    """

    value: Mapping[str, Any]
    text: str
    has_problem: bool = False


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of equal width, for terminals; cells of None are empty."""
    cells = [[*header], *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """A duration as people say it: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 d``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
