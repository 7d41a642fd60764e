"""Finds the splits of a log, and decides where each batch ends and which ranges it reads (FLIP-27)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sluice.errors import OptionError
from sluice.source.contracts import SplitEnumerator
from sluice.source.listing.listing import Lister, Listing
from sluice.source.listing.loss import LossChecks, missing_splits, recreated, unlisted_parents
from sluice.source.model.offsets import (
    After,
    AtTime,
    Closed,
    Expiry,
    Offsets,
    Position,
    SplitRange,
)
from sluice.source.model.splits import Split, SplitId
from sluice.source.planning.plan_figures import PlanFigures
from sluice.source.planning.planner import Planner
from sluice.source.planning.split_tracker import SplitTracker
from sluice.source.planning.subscription_tracker import SubscriptionTracker
from sluice.source.probing.probe import Probe
from sluice.source.settings import NO_LIMITS, Limits
from sluice.source.state.split_state import SplitState
from sluice.source.state.subscriptions import Subscriptions

__all__ = ["EnumeratorSettings", "InitialPositions", "StreamEnumerator"]

_log = logging.getLogger(__name__)

_TRIES = 4
"""Maximum number of listings at the start if children seem to be missing. They may never appear, for
example if the stream was disabled."""

InitialPositions = Callable[[Iterable[Split], int], Mapping[SplitId, Position]]
"""Gives every split its starting position, from all splits and the time (microseconds)."""

_LONGEST_QUIET = 1.0
"""Maximum seconds between two checks of splits and subscriptions, because a subscription may be silent."""


@dataclass(frozen=True)
class EnumeratorSettings:
    """The settings of a `StreamEnumerator`.

    Attributes:
        streams: their names.
        initial: gives splits their starting positions.
        discovery_interval: how often splits are listed (seconds).
        max_family: maximum number of open splits of a family that one batch reads over several
            generations. Descendants in larger families wait for the next batch, which balances tasks.
        starting: the user's starting position. It is logged, and a change is reported.
    """

    streams: Sequence[str]
    initial: InitialPositions
    discovery_interval: float = 10.0
    starting: str = ""
    max_family: int = 16


@dataclass(frozen=True)
class _NothingNew:
    """A search for new records that found none.

    Attributes:
        start, listing, version: its input; the version is of the subscriptions.
        until: when to search again in any case (monotonic seconds).
    """

    start: Offsets
    listing: Listing
    version: int
    until: float


class StreamEnumerator(SplitEnumerator[SplitRange, Offsets]):
    """The `SplitEnumerator` of a `StreamLog`. Owned by one thread. A new one can resume from the last
    offsets.

    Args:
        probe: reads splits; the enumerator lists the splits of its log.
        planner: finds the ends of batches.
        subscriptions: report the progress of pushed splits; all other splits are probed. Closed with the
            enumerator.

    Attributes:
        own_consumers: returns, by stream, the ARN of a consumer that this query registered. Offsets
            record it.
    """

    def __init__(
        self,
        settings: EnumeratorSettings,
        probe: Probe,
        planner: Planner,
        *,
        subscriptions: Subscriptions | None = None,
    ) -> None:
        self.own_consumers: Callable[[], Mapping[str, str]] = dict
        self._log = probe.log
        self._data_loss = probe.data_loss
        self._settings = settings
        self._probe = probe
        self._planner = planner
        self._subscriptions = subscriptions
        self._clock = probe.settings.clock
        self._splits = SplitTracker(probe, planner, settings.max_family)
        self._subscription_tracker = SubscriptionTracker(subscriptions, planner.max_drift)
        self._lister = Lister(
            probe, settings.streams, settings.discovery_interval, map_splits=planner.pool.map
        )
        self._loss = LossChecks(probe)
        self._initial: Offsets | None = None
        self._added: Mapping[SplitId, Position] | None = None
        self._has_checked_start = False
        self._nothing_new: _NothingNew | None = None
        self._figures = PlanFigures(self._clock)

    def close(self) -> None:
        """Stops the planner's threads, closes the subscriptions and the log."""
        self._planner.close()
        if self._subscriptions is not None:
            self._subscriptions.close()
        self._log.close()

    def initial(self) -> Offsets:
        """Returns the starting positions, which are decided at the first call.

        Raises:
            OptionError: a starting position is for a split that does not exist.
            ServiceError: the streams cannot be listed.
        """
        if self._initial is None:
            # A split that is listed only later would be read from its oldest record.
            self._initial = self._starting_positions(self._lister.complete(unlisted_parents, _TRIES))
        return self._initial

    def _starting_positions(self, listing: Listing) -> Offsets:
        # LATEST is a time of the service's clock before the listing, so records in between are read.
        positions = self._settings.initial(list(listing.splits.values()), listing.begun_at)
        starting = dict.fromkeys(self._settings.streams, self._settings.starting)
        offsets = self._offsets(positions, listing, self._loss.observe({}, listing), starting)
        _log.info("starting positions: %s", json.dumps(offsets.to_json()))
        return offsets

    def expect_reads(self) -> None:
        """Notes that other processes of this query may now read splits; see `Probe.expect_tasks`."""
        self._probe.expect_tasks()

    def stop_at_available(self) -> None:
        """Makes the next `advance` find the tip of every split, where the query will end."""
        self._splits.wants_targets = True

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        """See `SplitEnumerator.advance`.

        Raises:
            DataLossError: records after `start` are lost, and ``failOnDataLoss`` is true.
            ServiceError: a call failed, and retries did not help.
            OptionError: `start` belongs to other streams.
        """
        self._check_streams(start)
        # Read first, because a later version means news.
        version = 0 if self._subscriptions is None else self._subscriptions.version
        if self._has_nothing_new(start, version):
            return start
        listing = self._listing_for(start)
        expiry = self._loss.observe(start.expiry, listing)
        begin = self._begin(start, listing)
        readable, held = self._splits.move_to(begin, listing, limits)
        ends = self._plan(readable, held, limits)
        is_log_due = self._loss.is_log_due(start, listing, self._splits.states, readable)
        if not ends and begin is start and not is_log_due:
            self._nothing_new = self._nothing_new_until_read(start, listing, version)
            return start
        positions = self._splits.end_positions(begin, ends, listing, self._log.server_time())
        end = self._offsets(positions, listing, expiry, begin.starting, start.consumers)
        found = self._splits.found_starts(begin, ends)
        # Whether Spark's log does not record where this batch begins: splits were lost, found or added
        # before it, or it is the first batch, which Spark may repeat after a restart.
        begins_elsewhere = begin is not start or start == self._initial or found
        if begins_elsewhere:
            end = replace(end, start=self._splits.with_hints({**begin.positions, **found}))
        return end

    def with_added(self, start: Offsets) -> Offsets:
        """Returns `start`, with the starting positions of streams that were added to the query.

        Raises:
            ServiceError, OptionError: as `initial`.
        """
        self._check_streams(start)
        added = self._with_added(start, self._listing_for(start))
        return replace(added, streams=frozenset(self._settings.streams))

    def _listing_for(self, start: Offsets) -> Listing:
        """Returns the existing splits, including all that a batch from `start` needs."""
        if self._splits.wants_targets:
            # Existing records may be in children that are not listed yet.
            self._lister.mark_stale()
            self._lister.complete(lambda _: (), _TRIES)
        if self._added is None and not start.streams.issuperset(self._settings.streams):
            self._lister.complete(unlisted_parents, _TRIES)  # as for the starting positions of all streams
        return self._lister.complete(partial(missing_splits, start))

    def _begin(self, start: Offsets, listing: Listing) -> Offsets:
        """Returns where a batch begins: `start`, without lost splits, and with added and newly found ones."""
        kept = self._loss.without_lost(start, listing)
        if kept is not start:
            self._splits.forget()
        return self._with_added(kept, listing).with_splits(listing.splits)

    def _plan(
        self, states: Sequence[SplitState], held: Sequence[SplitState], limits: Limits
    ) -> dict[SplitId, After | Closed]:
        """Returns the ends of a batch, as `Planner.plan`; subscriptions follow its start."""
        self._subscription_tracker.follow(
            {split: state for split, state in self._splits.states.items() if split not in self._splits.held}
        )
        self._subscription_tracker.adopt(states, limits.span)
        ends = self._planner.plan(states, limits, held)
        for state in states:
            if state.reads.take_missing() or (state.has_ended and not state.split.is_closed):
                self._lister.mark_stale()
        self._figures.observe(states, ends)
        return ends

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[SplitRange]:
        """See `SplitEnumerator.ranges`.

        Raises:
            DataLossError: a stream was created again since `end` was planned, and ``failOnDataLoss`` is
                true. Otherwise the batch has no records of it.
            ServiceError: the streams cannot be listed.
            OptionError: `end` belongs to other streams.
        """
        self._check_streams(end)
        self._probe.expect_tasks()
        ranges = self._with_details(start.ranges_to(end), end)
        self._subscription_tracker.follow_rerun({each.split: each.start for each in ranges})
        return ranges

    def bounded(self, before: int | None = None) -> Sequence[SplitRange]:
        """Returns the ranges of a batch read: from the starting positions to the current tips.

        Args:
            before: skip records that arrived at or after this instant (microseconds).

        Raises:
            DataLossError, ServiceError, OptionError: as `initial` and `advance`.
        """
        listing = self._lister.complete(unlisted_parents, _TRIES)
        start = self._starting_positions(listing)
        states = [
            self._probe.state(split, start.position(split_id))
            for split_id, split in listing.splits.items()
            if not _is_empty(start.position(split_id), before)
        ]
        ends = self._planner.tips(states) if before is None else self._planner.ends_before(states, before)
        end = start.with_positions(ends)
        return self._with_details(start.ranges_to(end), end)

    @property
    def millis_behind_latest(self) -> Mapping[SplitId, int]:
        """By split, how far the end of the last batch is from the tip (milliseconds).

        A split is missing while its lag is unknown: before its first answer, and after 15 s without one.
        """
        return self._figures.lag

    @property
    def pushed(self) -> frozenset[SplitId]:
        """The splits with subscriptions that show where batches end. All others are probed."""
        return frozenset(split for split, state in self._splits.states.items() if state.is_pushed)

    def newest(self, start: Offsets) -> Offsets:
        if self._nothing_new is not None and self._nothing_new.start is start:
            return start
        newer: dict[SplitId, Position] = {}
        for split_id, state in self._splits.states.items():
            if state.cut_points and split_id in start.positions:
                last = state.cut_points[-1]
                newer[split_id] = After(last.number, arrival=last.arrival)
        return start.with_positions({**start.positions, **newer})

    # --- splits ---------------------------------------------------------------------------------------

    def _check_streams(self, offsets: Offsets) -> None:
        others = sorted(offsets.streams - set(self._settings.streams))
        if others:
            raise OptionError(
                f"the checkpoint belongs to other streams: it holds offsets of {', '.join(others)}, "
                f"and the query reads {', '.join(self._settings.streams)}; use a separate "
                "checkpoint for each set of streams"
            )
        if not self._has_checked_start:
            self._has_checked_start = True
            self._report_changed_start(offsets)

    def _report_changed_start(self, offsets: Offsets) -> None:
        for stream, text in offsets.starting.items():
            if text != self._settings.starting:
                _log.warning(
                    "%s: the query resumes where its checkpoint ends; it started at %s, and the starting "
                    "position %s applies only to a new checkpoint",
                    stream,
                    text,
                    self._settings.starting,
                )

    def _has_nothing_new(self, start: Offsets, version: int) -> bool:
        """Whether a search from `start` cannot find anything new yet. Checks no split: Spark calls 90
        times a second.
        """
        search = self._nothing_new
        if (
            search is not None
            and search.start is start
            and search.version == version
            and self._clock() < search.until
            and not self._splits.wants_targets
            and search.listing is self._lister.current()
        ):
            return True
        self._nothing_new = None
        return False

    def _nothing_new_until_read(self, start: Offsets, listing: Listing, version: int) -> _NothingNew | None:
        """Returns None if new records may become known without news and without another read of a split."""
        states = self._splits.states.values()
        if self._splits.has_targets or any(state.cut_points or state.split.is_closed for state in states):
            return None
        read_at = min((state.reads.next_read_at for state in states if not state.is_pushed), default=math.inf)
        return _NothingNew(start, listing, version, min(read_at, self._clock() + _LONGEST_QUIET))

    def _with_added(self, base: Offsets, listing: Listing) -> Offsets:
        """Adds the starting positions of streams that were added to the query; else returns `base` itself."""
        added = [stream for stream in self._settings.streams if stream not in base.streams]
        if not added:
            return base
        if self._added is None:
            splits = [split for split in listing.splits.values() if split.id.stream in added]
            self._added = dict(self._settings.initial(splits, self._log.server_time()))
            _log.info("%s: added to the query, starts at %s", ", ".join(added), self._settings.starting)
        return replace(
            base.with_positions({**base.positions, **self._added}),
            starting={**base.starting, **dict.fromkeys(added, self._settings.starting)},
        )

    # --- batches --------------------------------------------------------------------------------------

    def _offsets(
        self,
        positions: Mapping[SplitId, Position],
        listing: Listing,
        expiry: Mapping[str, Expiry],
        starting: Mapping[str, str],
        consumers: Mapping[str, str] = {},
    ) -> Offsets:
        return Offsets(
            positions,
            listing.created,
            frozenset(self._settings.streams),
            consumers={**consumers, **self.own_consumers()},
            expiry=expiry,
            listed=listing.at,
            starting=starting,
        )

    def _with_details(self, ranges: Sequence[SplitRange], end: Offsets) -> Sequence[SplitRange]:
        """Adds parents, hash keys and the expected number of records to the ranges. Removes recreated
        streams.

        The listing must have all splits of the batch. Otherwise children could be read before their
        parents, and records that a reshard has moved could be read twice.
        """
        if not ranges:
            return ranges
        needed = {each.split for each in ranges}

        def find_missing(listing: Listing) -> list[SplitId]:
            others = recreated(end, listing)
            return [split for split in needed - listing.splits.keys() if split.stream not in others]

        listing = self._lister.complete(find_missing)
        splits = listing.splits
        # The batch may have been planned before a listing showed that the stream was recreated.
        lost = self._loss.report_recreated(end, listing)
        ranges = [each for each in ranges if each.split.stream not in lost]
        read = {each.split for each in ranges}
        expiries = _expiries(ranges, listing, self._probe.data_loss.now())
        return [
            replace(
                each,
                expiry=expiries.get(each.split.stream, each.expiry),
                expected=self._figures.records(each.split, each.end),
                hash_range=splits[each.split].hash_range if each.split in splits else None,
                parents=tuple(p for p in _parents(splits.get(each.split)) if p in read),
            )
            for each in ranges
        ]


def _is_empty(start: Position, before: int | None) -> bool:
    """Whether the position itself shows that no record after `start` arrived before an instant."""
    if isinstance(start, AtTime) and before is not None:
        return start.number is None and start.instant >= before
    return isinstance(start, Closed)


def _expiries(ranges: Iterable[SplitRange], listing: Listing, now: int) -> dict[str, Expiry]:
    """Returns what has expired by now in each stream, so that tasks need not ask for its retention."""
    logged = {each.split.stream: each.expiry for each in ranges}
    return {
        stream: (expiry or Expiry(listing.retention[stream], 0)).at(now, listing.retention[stream])
        for stream, expiry in logged.items()
        if stream in listing.retention
    }


def _parents(split: Split | None) -> tuple[SplitId, ...]:
    return () if split is None else split.parent_ids
