"""Checks that batches follow one another without a gap: that no split is gone, and no record expired unread.

Spark logs where each batch ends. After a stop the stream may have been resharded, its records may have
expired, or it may be another stream of the same name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.instants import MICROS_PER_SECOND
from sluice.source.listing.discovery import Listing, SplitDiscovery
from sluice.source.model.offsets import (
    After,
    AtHorizon,
    AtTime,
    Closed,
    Expiry,
    Offsets,
    Position,
    SplitRange,
)
from sluice.source.model.sequence import sequence_of
from sluice.source.model.splits import Split, SplitId
from sluice.source.probing.probe import Probe
from sluice.source.state.split_state import SplitState
from sluice.source.state.subscriptions import Subscriptions

__all__ = ["Continuity", "is_within", "recreated"]

_log = logging.getLogger(__name__)

_VANISH_PATIENCE = 30.0
"""Seconds for which a split that may be needed is waited for. After them one that has a subscription counts
as gone, if the service says that it is gone and the next listing lacks it, too: the subscription may have
brought all records, and its agent may be silent for this long before it is replaced. A split without one
counts as gone as soon as the service says so."""
_RELISTING_PAUSE = 2.0
"""Seconds between two listings while splits are missing."""
_WARNING_INTERVAL = 30.0
"""Seconds between two warnings that splits are missing."""
_LOOKS_FOR_CHILDREN = 4
"""How often a read that starts lists again because a closed split has no children yet. It may never get any,
for instance if its stream was disabled."""
_PAUSE_FOR_CHILDREN = 0.5
"""Seconds before each of these listings."""

_CHECK_INTERVAL = 60.0
"""Seconds between two of the checks that take a while."""
_SHORTEST_RETENTION = 24 * 3600 * MICROS_PER_SECOND
"""The shortest retention of Kinesis (microseconds). Any may be lowered to it at any time."""
_HINTS_PER_RETENTION = 4
"""How often an idle query logs hints while the stream keeps a record. After a restart they tell splits that
got no records from those whose records have expired."""


class Continuity:
    """Tells the data loss policy what has been lost between two batches. Used by one thread.

    Args:
        probe: has the data loss policy, the clock and the pauses.
        discovery: lists splits.
        subscriptions: push splits; None where there are none.
        map_splits: as `map`, maybe side by side. After scaling, hundreds of parents expire.
    """

    def __init__(
        self,
        probe: Probe,
        discovery: SplitDiscovery,
        subscriptions: Subscriptions | None = None,
        map_splits: Callable[[Callable[[SplitId], bool], Iterable[SplitId]], Iterable[bool]] = map,
    ) -> None:
        self._map = map_splits
        self._subscriptions = subscriptions
        self._data_loss = probe.data_loss
        self._settings = probe.settings
        self._clock = probe.settings.clock
        self._discovery = discovery
        self._complete: Listing | None = None
        self._next_check = -math.inf

    def observe(self, start: Offsets, listing: Listing) -> dict[str, Expiry]:
        """By stream, which records have expired by now."""
        return {
            stream: self._data_loss.observe(stream, retention, start.expiry.get(stream))
            for stream, retention in listing.retention.items()
        }

    def is_check_due(self) -> bool:
        """Whether the checks that take a while are due: once a minute."""
        if self._clock() < self._next_check:
            return False
        self._next_check = self._clock() + _CHECK_INTERVAL
        return True

    def complete_listing(self, start: Offsets) -> Listing:
        """The splits as listed, with all that have not been read to their end, unless they are gone."""
        listing = self._discovery.current()
        if listing is not self._complete:
            self._complete = listing = self._list_until_there(
                lambda now: [*_missing(start, now), *_not_listed_again(start.positions, start, now)],
                lambda now: _not_recreated(_missing(start, now), start, now),
            )
        return listing

    def whole_listing(self) -> Listing:
        """The splits as listed, for a read that lists no second time, and for starting positions.

        Listed again are splits that others show to be missing: parents, unless they are gone, children, and
        both.
        """
        return self._list_until_whole(_unlisted_parents)

    def list_children(self) -> None:
        """Lists splits once more, and again while they show that others are missing, for a run that ends.

        Records that are there when the run begins may be in children that are not listed yet.
        """
        self._discovery.mark_stale()  # a listing of this very moment will do
        self._list_until_whole(lambda _: ())

    def _list_until_whole(self, find_missing: Callable[[Listing], Sequence[SplitId]]) -> Listing:
        listing = self._list_until_there(find_missing)
        for _ in range(_LOOKS_FOR_CHILDREN):
            if not listing.is_incomplete:
                break
            self._settings.pause(_PAUSE_FOR_CHILDREN)
            self._discovery.mark_stale()
            listing = self._list_until_there(find_missing)
        return listing

    def listing_of(self, ranges: Iterable[SplitRange], end: Offsets) -> Listing:
        """The splits as listed, with all those of a batch, unless they are gone.

        Args:
            end: where the batch ends.
        """
        ends = {each.split: each.end for each in ranges}

        def find_needed(listing: Listing) -> list[SplitId]:
            return _not_recreated(ends.keys() - listing.splits.keys(), end, listing)

        return self._list_until_there(
            lambda now: [*find_needed(now), *_not_listed_again(ends, end, now)], find_needed
        )

    def _list_until_there(
        self,
        find_missing: Callable[[Listing], Sequence[SplitId]],
        find_needed: Callable[[Listing], Sequence[SplitId]] = lambda _: (),
    ) -> Listing:
        """Lists again while splits are missing, unless the service says that all of them are gone.

        Listings are only eventually consistent.

        Args:
            find_missing: the splits that a listing may lack. They are waited for for a while.
            find_needed: those of them that are waited for however long it takes, as long as they can be read:
                a batch without them would lose their records, or read their children before them.
        """
        listing = self._discovery.current()
        began = self._clock()
        next_warning = -math.inf
        earlier: Listing | None = None
        while missing := find_missing(listing):
            is_confirmed = listing is not earlier and self._clock() - began >= _VANISH_PATIENCE
            if is_confirmed:
                missing = find_needed(listing)
            if self._are_gone(missing, are_subscriptions_over=is_confirmed):
                break
            if listing is not earlier and self._clock() >= next_warning:
                next_warning = self._clock() + _WARNING_INTERVAL
                _log.warning(
                    "%s: not listed, though not read to the end; nothing is read until all are listed, or "
                    "known to be gone; listing shards again every %g s",
                    ", ".join(map(str, missing)),
                    _RELISTING_PAUSE,
                )
            earlier = listing
            self._settings.pause(_RELISTING_PAUSE)
            self._discovery.mark_stale()
            listing = self._discovery.current()
        return listing

    def _are_gone(self, splits: Sequence[SplitId], *, are_subscriptions_over: bool) -> bool:
        """Whether the service says that none of them exists, and no subscription may have brought any."""
        subscriptions = None if are_subscriptions_over else self._subscriptions
        if subscriptions is not None and any(map(subscriptions.is_subscribed, splits)):
            return False
        return all(self._map(self._discovery.is_gone, splits))

    def without_lost(self, start: Offsets, listing: Listing) -> Offsets:
        """`start` itself, or, after a loss that is tolerated, the positions that still exist."""
        positions = dict(start.positions)
        has_lost = False
        for stream in self.report_recreated(start, listing):
            has_lost = True
            positions = {
                s: p
                for s, p in positions.items()
                if s.stream != stream or is_within(p, listing.splits.get(s))
            }
        if missing := _missing(start, listing):
            names = ", ".join(map(str, missing))
            self._data_loss.report(f"shards have vanished before they were read to their end: {names}")
            has_lost = True
            positions = {s: p for s, p in positions.items() if s not in missing}
        return start.with_positions(positions) if has_lost else start

    def report_recreated(self, offsets: Offsets, listing: Listing) -> list[str]:
        """Reports and returns the streams that were deleted and created again since `offsets` were logged."""
        streams = recreated(offsets, listing)
        for stream in streams:
            self._data_loss.report_recreated(stream, offsets.created[stream], listing.created[stream])
        return streams

    def check_starts(self, states: Iterable[SplitState]) -> None:
        """Reports splits whose records may have expired unread, and that have no other record to read."""
        now = self._data_loss.now()
        for state in states:
            if state.start_has_expired(now):
                self._data_loss.check_start(state.split.id, state.position, state.caught_up_at)
                state.mark_start_reported(now)

    def has_retention_changed(self, start: Offsets, listing: Listing) -> bool:
        """Whether to log a batch for this alone.

        While the query is stopped records may expire, and the retention may become what it was before.
        """
        logged = {stream: expiry.retention // 1000 for stream, expiry in start.expiry.items()}
        return bool(logged) and logged != {name: kept // 1000 for name, kept in listing.retention.items()}

    def are_hints_due(self, start: Offsets, listing: Listing, states: Mapping[SplitId, SplitState]) -> bool:
        """Whether to log a batch without records, so that hints do not become older than records."""
        oldest = {
            name: min(kept, _SHORTEST_RETENTION) // _HINTS_PER_RETENTION
            for name, kept in listing.retention.items()
        }
        if start.listed is not None and listing.at - start.listed > min(oldest.values()):
            return True
        for split, state in states.items():
            position = start.position(split)
            logged, known = (_last_known(p) for p in (position, state.unchanged_with_hints(position)))
            if logged is not None and known is not None and known - logged > oldest[split.stream]:
                return True
        return False


def recreated(start: Offsets, listing: Listing) -> list[str]:
    """The streams that were deleted and created again since `start` was logged."""
    return [
        stream
        for stream, created in listing.created.items()
        if stream in start.created and start.created[stream] // 1000 != created // 1000
    ]


def _not_recreated(splits: Iterable[SplitId], offsets: Offsets, listing: Listing) -> list[SplitId]:
    """Those of streams that are the same ones as when `offsets` was logged."""
    others = recreated(offsets, listing)
    return sorted(split for split in splits if split.stream not in others)


def _unlisted_parents(listing: Listing) -> list[SplitId]:
    parents = {parent for split in listing.splits.values() for parent in split.parent_ids}
    return sorted(parents - listing.splits.keys())


def _missing(start: Offsets, listing: Listing) -> list[SplitId]:
    """The splits that are not listed, though they were not read to their end.

    They are those with a position, and the parents of splits that have opened since the position was logged.
    """
    unfinished = {split for split, position in start.positions.items() if not isinstance(position, Closed)}
    if start.listed is not None:
        opened = [split for split_id, split in listing.splits.items() if split_id not in start.positions]
        parents = {SplitId(split.id.stream, parent) for split in opened for parent in split.parents}
        unfinished |= parents - start.positions.keys()
    others = {*recreated(start, listing), *(listing.created.keys() - start.streams)}
    return sorted(split for split in unfinished - listing.splits.keys() if split.stream not in others)


def _not_listed_again(
    positions: Mapping[SplitId, Position], offsets: Offsets, listing: Listing
) -> list[SplitId]:
    """The splits of streams that were created again that may be in the new stream, too.

    It may have been read before a listing showed that it is another one.
    """
    streams = recreated(offsets, listing)
    return sorted(
        split
        for split, position in positions.items()
        if split.stream in streams and split not in listing.splits and isinstance(position, After)
    )


def _last_known(position: Position) -> int | None:
    """The last instant (microseconds) at which no record after the position is known to have expired."""
    match position:
        case After():
            return max(
                (at for at in (position.arrival, position.caught_up_at) if at is not None), default=None
            )
        case AtHorizon() | AtTime():
            return position.last_caught_up_at
        case Closed():
            return None


def is_within(position: Position, split: Split | None) -> bool:
    """Whether a position was reached in this split, and not in one of the same name before it.

    Sequence numbers rise with time: no record of a split has a lower number than the one it starts with.
    """
    if split is None or not isinstance(position, After):
        return False
    return 0 < sequence_of(split.starting_sequence) <= position.sequence
