"""Writes down in a batch's end until when splits had no news: hints that later tell idle from lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sluice.source.offsets import After, AtTime, Closed, Position
from sluice.source.split_state import SplitState
from sluice.source.splits import SplitId

__all__ = ["refresh_idle", "with_quiet"]

_QUIET_WORTH_LOGGING = 600 * 1_000_000


def with_quiet(state: SplitState, end: After | Closed) -> After | Closed:
    """Logs how long nothing came, where that is much longer than the last batch's end tells."""
    here = state.position
    logged = here.known_idle if isinstance(here, AtTime) else None
    if isinstance(here, After):
        logged = here.idle
    if state.quiet is None or logged is None or state.quiet - logged < _QUIET_WORTH_LOGGING:
        return end
    return replace(end, quiet=state.quiet)


def refresh_idle(positions: dict[SplitId, Position], states: Iterable[SplitState]) -> None:
    """Writes down, for splits without news, until when that is known to be so.

    Not news by itself: it rides along with a batch, so that a later start can tell an idle
    split from one whose records have expired.
    """
    for state in states:
        here = state.cursor.position
        position = positions.get(state.split.id)
        is_current = isinstance(here, After) and here == position == state.position
        if is_current and not state.seen and isinstance(here, After):
            positions[state.split.id] = here
        elif isinstance(position, AtTime) and position == state.position and state.quiet is not None:
            positions[state.split.id] = replace(position, idle=state.quiet)
