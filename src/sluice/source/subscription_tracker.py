"""Between what a frontier knows and the planner's fronts: which splits are pushed, and which are probed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace

from sluice.source.admission import Limits
from sluice.source.offsets import Position
from sluice.source.split_state import Front
from sluice.source.splits import Split, SplitId
from sluice.source.subscriptions import Frontier, View

__all__ = ["Pushed"]

_log = logging.getLogger(__name__)

_PATIENCE = 5 * 1_000_000
"""So long (microseconds) a subscription may bring nothing and yet not be at the tip.

Looks may have come far ahead of it: then it gives only what is done, for as long as that takes.
"""


class Pushed:
    """Keeps the fronts of splits up with their subscriptions; without a frontier it does nothing."""

    def __init__(self, frontier: Frontier | None, now: Callable[[], int]) -> None:
        self._frontier = frontier
        self._now = now
        self._covered: set[SplitId] = set()
        self._has_planned = False

    def rerun(self, starts: Mapping[SplitId, Position]) -> None:
        """A batch is read from `starts`; only news where no batch has been planned yet, after a restart.

        Later the last plan says it all: a range names but the splits of one batch.
        """
        if self._frontier is not None and starts and not self._has_planned:
            self._frontier.follow(starts)

    def follow(self, readable: Mapping[SplitId, Front]) -> None:
        """All splits that may be read, each at the position where the next batch starts."""
        self._has_planned = True
        self._covered &= readable.keys()
        if self._frontier is not None:
            self._frontier.follow({split: front.position for split, front in readable.items()})

    def adopt(self, fronts: Iterable[Front], limits: Limits) -> None:
        """Brings fronts up to what is known of their splits; the others are left to probes."""
        if self._frontier is None:
            return
        for front in fronts:
            view = self._frontier.view(front.split.id, front.position)
            if view is not None and _hides_end(front.split, view):
                view = None
            if front.is_pushed and view is front.idle_view and view is not None:
                continue  # nothing is new, as for most shards at most of a hundred times a second
            front.is_pushed = False
            if view is not None and self._is_far_behind(front, view):
                view = None
            self._note(front.split.id, is_covered=view is not None)
            # A run that stops at a target must not stop short of it because events are on their way.
            if view is not None and (view.marks or front.target is None):
                front.adopt(view)
            if limits.span is not None and not _keeps_to(limits.span, front):
                front.unsee()  # no batch could end within: probes find a better place

    def unlisted(self, fronts: Mapping[SplitId, Front], listed: Container[SplitId]) -> list[Split]:
        """Splits that are listed no more, and whose records have all been pushed before they went."""
        if self._frontier is None:
            return []
        splits = []
        for split, front in fronts.items():
            view = None if split in listed else self._frontier.view(split, front.position)
            if view is not None and view.has_ended:
                last = view.marks[-1].number if view.marks else front.split.starting_sequence
                splits.append(replace(front.split, ending_sequence=front.split.ending_sequence or last))
        return splits

    def _is_far_behind(self, front: Front, view: View) -> bool:
        if view.marks or view.is_at_tip or view.has_ended:
            front.waits_since = None
            return False
        now = self._now()
        if front.waits_since is None:
            front.waits_since = now
        return now - front.waits_since >= _PATIENCE

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


def _keeps_to(span: int, front: Front) -> bool:
    """Whether a batch may take the first mark, with all that it counts, and hold no more than `span`."""
    if not front.seen:
        return True
    mark = front.seen[0]
    return mark.first_arrival is not None and mark.arrival < mark.first_arrival + span
