"""Finds columns that a destination would not write, so that a misspelt name does not lose data."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sluice.sink.contracts import StructType

__all__ = ["unknown_columns_problem"]


def unknown_columns_problem(
    schema: StructType, known: Sequence[str], ignored: Sequence[str] = ()
) -> str | None:
    """What is wrong with the columns that would not be written; None if there are none.

    Args:
        schema: of the rows. Names of columns are compared without regard to case.
        known: the columns that are written.
        ignored: columns that are left out and are no mistake.
    """
    names = [field.name for field in schema.fields]
    allowed = {name.lower() for name in (*known, *ignored)}
    unknown = [name for name in names if name.lower() not in allowed]
    if not unknown:
        return None
    given = {name.lower() for name in names}
    missing = [name for name in known if name.lower() not in given]
    problems = []
    for name in unknown:
        # A name that is there already is the likely one only if no missing name comes near.
        near = _nearest(name, missing) or _nearest(name, known)
        problems.append(
            f"column '{name}' would not be written" + (f": did you mean '{near}'?" if near else "")
        )
    listed = f"{', '.join(known[:-1])} and {known[-1]}" if len(known) > 1 else "".join(known)
    return (
        f"{'; '.join(problems)} (the columns that are written: {listed}; "
        "'unknownColumns' ignore leaves the others out)"
    )


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The name in `known` that is most like `name`, or None if none is like it."""
    by_key = {_key(each): each for each in known}
    near = difflib.get_close_matches(_key(name), by_key, n=1, cutoff=0.6)
    return by_key[near[0]] if near else None


def _key(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
