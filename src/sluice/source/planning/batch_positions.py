"""The positions at both ends of a batch, from what was logged, what is listed and what is known of splits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sluice.source.listing.discovery import Listing
from sluice.source.model.offsets import After, AtHorizon, Closed, Offsets, Position, before, is_by_time
from sluice.source.model.splits import SplitId
from sluice.source.state.split_state import SplitState

__all__ = ["end_positions", "found_starts", "with_hints", "with_unlogged"]

States = Mapping[SplitId, SplitState]


def with_unlogged(start: Offsets, listing: Listing) -> Offsets:
    """`start` with a position for every split, also for those that were found since it was logged."""
    unlogged = {
        split: AtHorizon(caught_up_at=listing.absent_at.get(split, start.listed))
        for split in listing.splits
        if split not in start.positions
    }
    return replace(start, positions={**start.positions, **unlogged}) if unlogged else start


def end_positions(
    start: Offsets, ends: Mapping[SplitId, After | Closed], states: States, listing: Listing, now: int
) -> dict[SplitId, Position]:
    """All positions at the end of a batch, with hints, without drained splits that expired long ago.

    Args:
        start: where the batch starts.
        ends: where it ends in the splits that advance.
        now: the service's time (microseconds).
    """
    ends_with_hints = {split: states[split].end_with_hints(end) for split, end in ends.items()}
    positions = with_hints({**start.positions, **ends_with_hints}, states)
    for split_id, position in list(positions.items()):
        if not isinstance(position, Closed):
            continue
        unlisted_at = position.unlisted_at
        if split_id in listing.splits:
            unlisted_at = None
        elif unlisted_at is None:
            unlisted_at = now
        elif now - unlisted_at >= listing.retention.get(split_id.stream, 0):
            del positions[split_id]  # its last record has expired
            continue
        # The hint is about the batch that has read the split to its end.
        caught_up_at = position.start_caught_up_at if split_id in ends else None
        if (caught_up_at, unlisted_at) != (position.start_caught_up_at, position.unlisted_at):
            positions[split_id] = Closed(caught_up_at, unlisted_at)
    return positions


def with_hints(positions: Mapping[SplitId, Position], states: States) -> dict[SplitId, Position]:
    """`positions`, where a split did not advance with the instant at which it was last caught up."""
    return {
        split: states[split].unchanged_with_hints(position) if split in states else position
        for split, position in positions.items()
    }


def found_starts(start: Offsets, ends: Collection[SplitId], states: States) -> dict[SplitId, Position]:
    """By split, the first record found at or after the time at which the batch starts there.

    Tasks start at that record where the log cannot seek by time.
    """
    return {
        split: before(number)
        for split in ends
        if is_by_time(start.position(split)) and (number := states[split].first_number)
    }
