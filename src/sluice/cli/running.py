"""Whether a query may be running on a checkpoint.

Nothing says so for certain. Spark takes no lock on a checkpoint, writes no sign of life, and an idle query
writes nothing at all. A young file is a sign that the query runs; an old one does not prove that it is
stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from sluice.cli.checkpoint import Checkpoint
from sluice.cli.report import duration
from sluice.errors import SluiceError

__all__ = ["Quiet", "quiet_enough"]

_LEAST: Final = 120.0
"""Seconds without a new file after which a query with short batches counts as stopped."""
_BATCHES: Final = 3
"""A query with long batches counts as stopped after this many times the usual time between two batches."""
_LOOKED_AT: Final = 20
"""Batches from which that time is taken."""


@dataclass(frozen=True)
class Quiet:
    """For how long nothing was written.

    Attributes:
        age: seconds since the last file; None: there is none.
        needed: seconds after which the query counts as stopped.
    """

    age: float | None
    needed: float

    @property
    def is_quiet(self) -> bool:
        return self.age is None or self.age >= self.needed

    @property
    def text(self) -> str:
        if self.age is None:
            return "no batch was logged yet"
        logged = f"the checkpoint was written to {duration(max(0.0, self.age))} ago"
        if self.is_quiet:
            return f"{logged}, which does not prove that the query is stopped: an idle one writes nothing"
        return f"{logged}, and a query that is stopped has not written for {duration(self.needed)}"


def quiet_enough(checkpoint: Checkpoint, now: float) -> Quiet:
    """Compares the age of the last file with the usual time between two batches.

    Args:
        now: seconds since the epoch.
    """
    written = checkpoint.written_at
    times = [_logged_at(checkpoint, batch) for batch in checkpoint.batches[-_LOOKED_AT:]]
    known = [at / 1000 for at in times if at is not None]
    gaps = [later - earlier for earlier, later in pairwise(known)]
    needed = max(_LEAST, _BATCHES * median(gaps)) if gaps else _LEAST
    return Quiet(None if written is None else now - written.timestamp(), needed)


def _logged_at(checkpoint: Checkpoint, batch: int) -> int | None:
    """When a batch was planned (milliseconds); None if its file does not say, or is damaged."""
    try:
        return checkpoint.read(batch).logged_at
    except SluiceError:
        return None
