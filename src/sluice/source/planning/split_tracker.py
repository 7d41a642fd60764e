"""Tracks which splits a batch may read, and where it begins and ends in them, like Flink's `SplitTracker`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sluice.source.listing.listing import Listing
from sluice.source.model.offsets import After, Closed, Offsets, Position, before, is_by_time
from sluice.source.model.splits import Split, SplitId, held_back, within_reach
from sluice.source.planning.planner import Planner
from sluice.source.probing.probe import Probe
from sluice.source.settings import Limits
from sluice.source.state.split_state import SplitState

__all__ = ["SplitTracker"]


class SplitTracker:
    """The states of the splits that one batch may read. Owned by the enumerator's thread.

    Args:
        max_family: see `EnumeratorSettings`.

    Attributes:
        states: by split, parents before their children.
        held: splits for later batches, although this batch can read their ancestors.
        wants_targets: the next `move_to` finds the tip of every split, its target.
    """

    def __init__(self, probe: Probe, planner: Planner, max_family: int) -> None:
        self._probe = probe
        self._planner = planner
        self._max_family = max_family
        self.states: Mapping[SplitId, SplitState] = {}
        self.held: frozenset[SplitId] = frozenset()
        self.wants_targets = False
        self._targets: Mapping[SplitId, After | Closed] | None = None
        self._begin: Offsets | None = None  # `states` belong to this and `_listing`
        self._listing: Listing | None = None
        self._drained: frozenset[SplitId] = frozenset()
        self._within_reach: Sequence[Split] = ()  # for `_listing` and `_drained`

    @property
    def has_targets(self) -> bool:
        """Whether this run ends at the tips that existed at its start."""
        return self._targets is not None

    def forget(self) -> None:
        """Drops all states: streams may have been created again."""
        self.states, self._begin = {}, None

    def move_to(
        self, begin: Offsets, listing: Listing, limits: Limits
    ) -> tuple[list[SplitState], list[SplitState]]:
        """Updates the states to where a batch begins.

        Returns:
            The states of the splits that the batch may read, and of `held` splits, without those that
                have reached their target.

        Raises:
            DataLossError, ServiceError: as `Planner.tips`.
        """
        is_settled = self._targets is None and not self.wants_targets
        if not (is_settled and self._begin is begin and self._listing is listing):
            self._update(begin, listing, limits)
        left = list(self.states.values())
        if self._targets is not None:  # splits that opened later have no target, and wait for the next run
            left = [state for state in left if state.target not in (None, state.position)]
        readable = [state for state in left if state.split.id not in self.held]
        return readable, [state for state in left if state.split.id in self.held]

    def _update(self, begin: Offsets, listing: Listing, limits: Limits) -> None:
        if self._listing is not listing or self._drained != begin.drained:
            self._listing, self._drained = listing, begin.drained
            self._within_reach = within_reach(listing.splits, self._drained)
            self.held = held_back(self._within_reach, self._max_family)
        self._begin = begin
        states = {split.id: self._state_of(split, begin.position(split.id)) for split in self._within_reach}
        self.states = states
        if self.wants_targets:
            self._targets = self._find_targets(states, begin, listing, limits)
            self.wants_targets = False  # not before: the search may fail
        for split, state in states.items():
            if self._targets is not None and state.target is None and split in self._targets:
                state.stop_at(self._targets[split])

    def end_positions(
        self, begin: Offsets, ends: Mapping[SplitId, After | Closed], listing: Listing, now: int
    ) -> dict[SplitId, Position]:
        """Returns all positions at the end of a batch, with hints. Drops drained splits that expired
        long ago.

        Args:
            begin: where the batch begins.
            ends: where it ends in the splits that advance.
            now: the service's time (microseconds).
        """
        with_hints = {
            split: self.states[split].end_with_hints(end, begin.position(split))
            for split, end in ends.items()
        }
        positions = self.with_hints({**begin.positions, **with_hints})
        for split, position in list(positions.items()):
            if not isinstance(position, Closed):
                continue
            unlisted_at = None if split in listing.splits else position.unlisted_at or now
            if unlisted_at is not None and now - unlisted_at >= listing.retention[split.stream]:
                del positions[split]  # its last record has expired
            else:
                # The hint is about the batch that has read the split to its end.
                caught_up_at = position.start_caught_up_at if split in ends else None
                positions[split] = Closed(caught_up_at, unlisted_at)
        return positions

    def with_hints(self, positions: Mapping[SplitId, Position]) -> dict[SplitId, Position]:
        """Adds to each split that did not advance the instant at which it was last caught up."""
        return {
            split: self.states[split].unchanged_with_hints(position) if split in self.states else position
            for split, position in positions.items()
        }

    def found_starts(self, begin: Offsets, ends: Collection[SplitId]) -> dict[SplitId, Position]:
        """Returns, by split, the first record found at or after the time at which the batch begins there.

        If the log cannot seek by time, tasks start at that record. If it can, the result is empty.
        """
        if self._probe.log.seeks_by_time:
            return {}
        return {
            split: before(number)
            for split in ends
            if is_by_time(begin.position(split)) and (number := self.states[split].first_number)
        }

    def _find_targets(
        self, states: dict[SplitId, SplitState], begin: Offsets, listing: Listing, limits: Limits
    ) -> Mapping[SplitId, After | Closed]:
        """Returns the current tips of all splits, including splits with unread parents."""
        fresh = [
            self._new_state(split, begin.position(split_id))
            for split_id, split in listing.splits.items()
            if not isinstance(begin.position(split_id), Closed)
        ]
        targets = self._planner.tips(fresh)
        # Records that a fresh state has found need not be read again.
        states |= {state.split.id: state for state in fresh if state.split.id in states}
        if not limits.is_none:  # limits count the records that the search has skipped
            for state in fresh:
                state.drop_after_gap()
        return targets

    def _state_of(self, split: Split, position: Position) -> SplitState:
        state = self.states.get(split.id)
        if state is None or not state.can_advance_to(position):
            return self._new_state(split, position)
        state.split = split
        state.advance_to(position)
        return state

    def _new_state(self, split: Split, position: Position) -> SplitState:
        expiry = self._probe.data_loss.expiry.get(split.id.stream)
        known = self.states.get(split.id)
        return self._probe.state(split, position, expiry=expiry, reads=None if known is None else known.reads)
