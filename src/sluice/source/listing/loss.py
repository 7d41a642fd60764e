"""Checks that no split is missing and no record has expired between two batches.

Spark logs only where each batch ends. While a query is stopped, the stream may be resharded, its records
may expire, or a new stream may get its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sluice.instants import MICROS_PER_SECOND
from sluice.source.listing.listing import Listing
from sluice.source.model.offsets import Closed, Expiry, Offsets
from sluice.source.model.splits import SplitId
from sluice.source.probing.probe import Probe
from sluice.source.state.split_state import SplitState

__all__ = ["LossChecks", "missing_splits", "recreated", "unlisted_parents"]

_CHECK_INTERVAL = 60.0
"""Seconds between two of the slow checks."""
_SHORTEST_RETENTION = 24 * 3600 * MICROS_PER_SECOND
"""Kinesis' minimum retention (microseconds). A longer retention may be lowered to it at any time."""
_HINTS_PER_RETENTION = 4
"""How often an idle query logs hints within the retention. After a restart, hints show whether a split
got no records or its records have expired."""


def recreated(offsets: Offsets, listing: Listing) -> set[str]:
    """Returns the streams that were deleted and created again since `offsets` were logged."""
    return {
        stream
        for stream, created in listing.created.items()
        if stream in offsets.created and offsets.created[stream] // 1000 != created // 1000
    }


def missing_splits(start: Offsets, listing: Listing) -> set[SplitId]:
    """Returns the splits that a batch from `start` needs and that are not listed.

    These are the unfinished splits, and the parents of splits that have opened since `start` was logged.
    A stream that was created again needs none.
    """
    unread = {split for split, position in start.positions.items() if not isinstance(position, Closed)}
    if start.listed is not None:
        opened = (split for split_id, split in listing.splits.items() if split_id not in start.positions)
        unread |= {parent for split in opened for parent in split.parent_ids} - start.positions.keys()
    streams = start.streams - recreated(start, listing)
    return {split for split in unread - listing.splits.keys() if split.stream in streams}


def unlisted_parents(listing: Listing) -> set[SplitId]:
    return {
        parent for split in listing.splits.values() for parent in split.parent_ids
    } - listing.splits.keys()


class LossChecks:
    """Reports to the data loss policy what was lost between two batches. Used by one thread."""

    def __init__(self, probe: Probe) -> None:
        self._data_loss = probe.data_loss
        self._clock = probe.settings.clock
        self._next_check = -math.inf

    def observe(self, logged: Mapping[str, Expiry], listing: Listing) -> dict[str, Expiry]:
        """Returns, by stream, which records have expired by now.

        Args:
            logged: the same when the start was logged.
        """
        return {
            stream: self._data_loss.observe(stream, retention, logged.get(stream))
            for stream, retention in listing.retention.items()
        }

    def without_lost(self, start: Offsets, listing: Listing) -> Offsets:
        """Returns `start` itself, or, after a tolerated loss, the positions that still exist.

        A stream that was created again is read from its oldest record.

        Args:
            listing: has all splits that `start` needs and that still exist.
        """
        streams = self.report_recreated(start, listing)
        missing = missing_splits(start, listing)
        if missing:
            names = ", ".join(map(str, sorted(missing)))
            self._data_loss.report(f"shards have vanished before they were read to their end: {names}")
        if not streams and not missing:
            return start
        return start.with_positions(
            {
                split: position
                for split, position in start.positions.items()
                if split not in missing and split.stream not in streams
            }
        )

    def report_recreated(self, offsets: Offsets, listing: Listing) -> set[str]:
        """Reports and returns the streams that were deleted and created again since `offsets` were logged."""
        streams = recreated(offsets, listing)
        for stream in sorted(streams):
            self._data_loss.report_recreated(stream, offsets.created[stream], listing.created[stream])
        return streams

    def is_log_due(
        self,
        start: Offsets,
        listing: Listing,
        states: Mapping[SplitId, SplitState],
        readable: Iterable[SplitState],
    ) -> bool:
        """Whether to log a batch even without records, because later runs need its hints.

        Once a minute it also reports splits with nothing left to read if records may have expired
        unread.

        Args:
            states: of all splits.
            readable: the splits that this batch may read.
        """
        if self._clock() < self._next_check:
            return _has_retention_changed(start, listing)
        self._next_check = self._clock() + _CHECK_INTERVAL
        now = self._data_loss.now()
        for state in readable:
            if state.start_has_expired(now):
                self._data_loss.check_start(state.split.id, state.position, None)
                state.mark_start_reported(now)
        return _has_retention_changed(start, listing) or _are_hints_due(start, listing, states)


def _has_retention_changed(start: Offsets, listing: Listing) -> bool:
    """Whether the retention differs from the logged one. While the query is stopped, records may
    expire, and the retention may be set back.
    """
    logged = {stream: expiry.retention // 1000 for stream, expiry in start.expiry.items()}
    return bool(logged) and logged != {name: kept // 1000 for name, kept in listing.retention.items()}


def _are_hints_due(start: Offsets, listing: Listing, states: Mapping[SplitId, SplitState]) -> bool:
    """Whether the logged hints will soon be older than the oldest records."""
    oldest = {
        name: min(kept, _SHORTEST_RETENTION) // _HINTS_PER_RETENTION
        for name, kept in listing.retention.items()
    }
    if start.listed is not None and listing.at - start.listed > min(oldest.values()):
        return True
    for split, state in states.items():
        position = start.position(split)
        logged, known = position.last_caught_up_at, state.unchanged_with_hints(position).last_caught_up_at
        if logged is not None and known is not None and known - logged > oldest[split.stream]:
            return True
    return False
