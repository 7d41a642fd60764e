"""Between subscriptions and the planner's states: which splits are pushed, and which are probed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from sluice.source.admission import Limits
from sluice.source.offsets import Position
from sluice.source.split_state import SplitState
from sluice.source.splits import Split, SplitId
from sluice.source.subscriptions import Subscriptions, View

__all__ = ["SubscriptionTracker"]

_log = logging.getLogger(__name__)

_PATIENCE = 5 * 1_000_000
"""So long (microseconds) a subscription may bring nothing and yet not be at the tip.

Looks may have come far ahead of it: then it gives only what is done, for as long as that takes.
"""


class SubscriptionTracker:
    """Keeps the states of splits up with their subscriptions; without a subscriptions it does nothing."""

    def __init__(self, subscriptions: Subscriptions | None, now: Callable[[], int]) -> None:
        self._subscriptions = subscriptions
        self._now = now
        self._covered: set[SplitId] = set()
        self._has_planned = False

    def rerun(self, starts: Mapping[SplitId, Position]) -> None:
        """A batch is read from `starts`; only news where no batch has been planned yet, after a restart.

        Later the last plan says it all: a range names but the splits of one batch.
        """
        if self._subscriptions is not None and starts and not self._has_planned:
            self._subscriptions.follow(starts)

    def follow(self, readable: Mapping[SplitId, SplitState]) -> None:
        """All splits that may be read, each at the position where the next batch starts."""
        self._has_planned = True
        self._covered &= readable.keys()
        if self._subscriptions is not None:
            self._subscriptions.follow({split: state.position for split, state in readable.items()})

    def adopt(self, states: Iterable[SplitState], limits: Limits) -> None:
        """Brings states up to what is known of their splits; the others are left to probes."""
        if self._subscriptions is None:
            return
        for state in states:
            view = self._subscriptions.view(state.split.id, state.position)
            if view is not None and _hides_end(state.split, view):
                view = None
            if state.is_pushed and view is state.idle_view and view is not None:
                continue  # nothing is new, as for most shards at most of a hundred times a second
            state.is_pushed = False
            if view is not None and self._is_far_behind(state, view):
                view = None
            self._note(state.split.id, is_covered=view is not None)
            # A run that stops at a target must not stop short of it because events are on their way.
            if view is not None and (view.marks or state.target is None):
                state.adopt(view)
            if limits.span is not None and not _keeps_to(limits.span, state):
                state.unsee()  # no batch could end within: probes find a better place

    def unlisted(self, states: Mapping[SplitId, SplitState], listed: Container[SplitId]) -> list[Split]:
        """Splits that are listed no more, and whose records have all been pushed before they went."""
        if self._subscriptions is None:
            return []
        splits = []
        for split, state in states.items():
            view = None if split in listed else self._subscriptions.view(split, state.position)
            if view is not None and view.has_ended:
                last = view.marks[-1].number if view.marks else state.split.starting_sequence
                splits.append(replace(state.split, ending_sequence=state.split.ending_sequence or last))
        return splits

    def _is_far_behind(self, state: SplitState, view: View) -> bool:
        if view.marks or view.is_at_tip or view.has_ended:
            state.waits_since = None
            return False
        now = self._now()
        if state.waits_since is None:
            state.waits_since = now
        return now - state.waits_since >= _PATIENCE

    def _note(self, split: SplitId, *, is_covered: bool) -> None:
        if is_covered and split not in self._covered:
            self._covered.add(split)
            _log.info("%s: batches end where its subscription has come to", split)
        elif not is_covered and split in self._covered:
            self._covered.remove(split)
            _log.info("%s: no subscription has come to where it is; batches end where looks at it say", split)


def _hides_end(split: Split, view: View) -> bool:
    """Whether a split has ended and its subscription, at the tip, has not said so: a look will tell."""
    return split.is_closed and view.is_at_tip and not view.marks


def _keeps_to(span: int, state: SplitState) -> bool:
    """Whether a batch may take the first mark, with all that it counts, and hold no more than `span`."""
    if not state.seen:
        return True
    mark = state.seen[0]
    return mark.first_arrival is not None and mark.arrival < mark.first_arrival + span
