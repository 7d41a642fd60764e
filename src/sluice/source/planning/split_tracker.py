"""Which splits a batch may read, parents before their children, and what is known of each.

As the `SplitTracker` of Flink's source for Kinesis.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.source.listing.discovery import Listing
from sluice.source.model.offsets import After, Closed, Offsets, Position
from sluice.source.model.splits import Lineage, Split, SplitId, held_back
from sluice.source.planning.planner import Planner
from sluice.source.probing.probe import Probe
from sluice.source.settings import Limits
from sluice.source.state.split_state import SplitState

__all__ = ["SplitTracker"]


@dataclass(frozen=True)
class _WithinReach:
    """What `Lineage.within_reach` found.

    Attributes:
        lineage, drained: for which it was asked.
        splits: parents before their children.
        held: those of `splits` that are left to later batches nevertheless.
    """

    lineage: Lineage
    drained: frozenset[SplitId]
    splits: Sequence[Split] = ()
    held: frozenset[SplitId] = frozenset()


class SplitTracker:
    """The states of the splits that one batch may read. Owned by the enumerator's thread.

    Args:
        probe: makes states.
        planner: finds where a run ends that reads what is available.
        max_family: see `EnumeratorSettings`.

    Attributes:
        states: by split, parents before their children.
        wants_targets: the next `move_to` finds the tip of every split, its target.
    """

    def __init__(self, probe: Probe, planner: Planner, max_family: int) -> None:
        self._probe = probe
        self._planner = planner
        self._max_family = max_family
        self.states: Mapping[SplitId, SplitState] = {}
        self.wants_targets = False
        self._targets: Mapping[SplitId, After | Closed] | None = None
        self._reach = _WithinReach(Lineage(()), frozenset())
        self._base: Offsets | None = None  # what `states` belong to, besides `_reach.lineage`

    @property
    def has_targets(self) -> bool:
        """Whether the run ends at the tips that were found when it began."""
        return self._targets is not None

    @property
    def held(self) -> frozenset[SplitId]:
        """The splits that are left to later batches, though their ancestors can be read in this one."""
        return self._reach.held

    def forget(self, streams: Collection[str]) -> None:
        """Drops what is known of splits: their streams were created again."""
        self.states = {split: state for split, state in self.states.items() if split.stream not in streams}

    def move_to(self, base: Offsets, listing: Listing, limits: Limits) -> list[SplitState]:
        """Brings the states to where a batch starts.

        Returns:
            Those of the splits that the batch may read, and of those that are `held`. In a run with targets,
            splits at their target are left out.

        Raises:
            DataLossError, ServiceError: as `Planner.tips`.
        """
        is_settled = self._targets is None and not self.wants_targets
        if is_settled and self._base is base and self._reach.lineage is listing.lineage:
            return list(self.states.values())
        self._base = base
        self._reach = self._within_reach(listing.lineage, base.drained)
        states = {split.id: self._state_of(split, base.position(split.id)) for split in self._reach.splits}
        self.states = states
        if self.wants_targets:
            self._targets = self._find_targets(states, base, listing, limits)
            self.wants_targets = False  # not before: the search may fail
        if self._targets is None:
            return list(states.values())
        for split_id, state in states.items():
            if state.target is None and split_id in self._targets:
                state.stop_at(self._targets[split_id])
        # Splits that opened later have no target, and are left to the next run.
        return [state for state in states.values() if state.target not in (None, state.position)]

    def _within_reach(self, lineage: Lineage, drained: frozenset[SplitId]) -> _WithinReach:
        """It stays the same until another listing, or the end of a split."""
        if self._reach.lineage is lineage and self._reach.drained == drained:
            return self._reach
        splits = lineage.within_reach(drained)
        return _WithinReach(lineage, drained, splits, held_back(splits, self._max_family))

    def _find_targets(
        self, states: dict[SplitId, SplitState], base: Offsets, listing: Listing, limits: Limits
    ) -> Mapping[SplitId, After | Closed]:
        """The tips of all splits as of now, also of those whose parents have to be read before them."""
        fresh = [
            self._new_state(split, base.position(split_id))
            for split_id, split in listing.splits.items()
            if not isinstance(base.position(split_id), Closed)
        ]
        targets = self._planner.tips(fresh)
        # What a fresh state has found need not be read again.
        states |= {state.split.id: state for state in fresh if state.split.id in states}
        if not limits.is_none:  # they count records that the search for the tip has left out
            for state in fresh:
                state.drop_after_gap()
        return targets

    def _state_of(self, split: Split, position: Position) -> SplitState:
        state = self.states.get(split.id)
        if state is None or not state.can_advance_to(position):
            return self._new_state(split, position)
        state.relist(split)
        state.advance_to(position)
        return state

    def _new_state(self, split: Split, position: Position) -> SplitState:
        expiry = self._probe.data_loss.expiry.get(split.id.stream)
        return self._probe.state(split, position, expiry=expiry)
