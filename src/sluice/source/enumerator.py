"""Discovers splits, hands them out parents before children, and says where each batch ends (FLIP-27)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sluice.errors import OptionError, ServiceError
from sluice.source.admission import NO_LIMITS, Limits
from sluice.source.data_loss import DataLossPolicy
from sluice.source.hints import refresh_idle, with_quiet
from sluice.source.offsets import After, Closed, Offsets, Position, SplitRange
from sluice.source.planner import Planner
from sluice.source.probe import Probe
from sluice.source.split_state import SplitState
from sluice.source.splits import Lineage, Split, SplitId
from sluice.source.stream_log import StreamInfo, StreamLog
from sluice.source.subscription_tracker import SubscriptionTracker
from sluice.source.subscriptions import Subscriptions

__all__ = ["EnumeratorSettings", "InitialPositions", "SplitEnumerator", "StreamEnumerator"]

_log = logging.getLogger(__name__)

_LAG_LINE_INTERVAL = 10 * 1_000_000

SplitT_co = TypeVar("SplitT_co", covariant=True)
PositionT = TypeVar("PositionT")

InitialPositions = Callable[[Iterable[Split], int], Mapping[SplitId, Position]]
"""Pins the start of every split, given all there are and the time (microseconds)."""


class SplitEnumerator(Protocol[SplitT_co, PositionT]):
    """FLIP-27's split enumerator: runs beside the driver, finds splits and decides what is read next.

    `initial` comes first in a new query; `advance` and `ranges` follow in turn. After a restart
    `ranges` may come first, with positions that an earlier enumerator gave out.
    """

    def discover(self) -> Sequence[SplitT_co]:
        """All splits there are now, with or without records."""

    def initial(self) -> PositionT:
        """Where the first batch starts. The same at every call."""

    def advance(self, start: PositionT, limits: Limits = NO_LIMITS) -> PositionT:
        """Where a batch from `start` ends; `start` itself where there is nothing new."""

    def ranges(self, start: PositionT, end: PositionT) -> Sequence[SplitRange]:
        """What the batch reads, by split."""


@dataclass(frozen=True)
class EnumeratorSettings:
    """What to enumerate.

    Attributes:
        streams: their names.
        initial: pins starting positions.
        discovery_interval: how often splits are listed anew (seconds).
    """

    streams: Sequence[str]
    initial: InitialPositions
    discovery_interval: float = 10.0


@dataclass(frozen=True)
class _Listing:
    """What there was at the last discovery."""

    lineage: Lineage
    infos: Mapping[str, StreamInfo]
    at: int  # microseconds


class StreamEnumerator:
    """The `SplitEnumerator` of shards, with `Offsets` as positions. Owned by one thread.

    All it keeps is derived: a new one, given the offsets, goes on where the last one was.

    Args:
        subscriptions: knows splits that are pushed; those it does not know are probed. Closed with this.
        registered: stream to the ARN of a consumer registered by this query.

    Attributes:
        registered: goes into every end planned from now on, beside what was logged before.
    """

    def __init__(  # noqa: PLR0913 - its parts, put together in one place
        self,
        log: StreamLog,
        settings: EnumeratorSettings,
        data_loss: DataLossPolicy,
        probe: Probe,
        planner: Planner,
        *,
        subscriptions: Subscriptions | None = None,
        registered: Mapping[str, str] | None = None,
    ) -> None:
        self.registered = dict(registered or {})
        self._log = log
        self._settings = settings
        self._data_loss = data_loss
        self._probe = probe
        self._planner = planner
        self._subscriptions = subscriptions
        self._tracker = SubscriptionTracker(subscriptions, log.server_time)
        self._initial: Offsets | None = None
        self._listing: _Listing | None = None
        self._is_listing_stale = False
        self._states: dict[SplitId, SplitState] = {}
        self._targets: Mapping[SplitId, After | Closed] | None = None
        self._wants_targets = False
        self._expected: dict[tuple[SplitId, After | Closed], int] = {}
        self._lag: dict[SplitId, int] = {}
        self._next_lag_line = 0

    def close(self) -> None:
        self._planner.close()
        if self._subscriptions is not None:
            self._subscriptions.close()

    def discover(self) -> Sequence[Split]:
        """Lists the splits of all streams now.

        Raises:
            ServiceError: a stream does not exist or the service can't be asked.
        """
        infos = {stream: self._log.describe(stream) for stream in self._settings.streams}
        splits = [split for stream in self._settings.streams for split in self._log.list_splits(stream)]
        self._listing = _Listing(
            Lineage([*splits, *self._unlisted(splits, infos)]), infos, self._log.server_time()
        )
        self._is_listing_stale = False
        for split in splits:
            if split.id in self._states:
                self._states[split.id].split = split
        return splits

    def initial(self) -> Offsets:
        """Pins the starting positions, once.

        Raises:
            OptionError: a starting position for a split that does not exist.
        """
        if self._initial is None:
            # A first answer tells how the service's clock differs: LATEST is a time of that clock.
            self._log.describe(self._settings.streams[0])
            now = self._log.server_time()  # before listing: what comes between is not missed
            splits = self.discover()
            positions = self._settings.initial(splits, now)
            self._initial = self._offsets(dict(positions))
            _log.info("starting positions: %s", json.dumps(self._initial.to_json()))
        return self._initial

    def stop_at_available(self) -> None:
        """From the next `advance` on, nothing that comes later than now is handed out."""
        self._wants_targets = True

    def advance(self, start: Offsets, limits: Limits = NO_LIMITS) -> Offsets:
        """See `SplitEnumerator.advance`.

        Raises:
            DataLossError: what comes behind `start` is gone and data loss is to fail.
            ServiceError: a call failed for good.
            OptionError: `start` belongs to other streams.
        """
        self._check_streams(start)
        listing = self._current_listing()
        base = self._without_lost(start, listing)
        states = self._readable_states(base, listing)
        self._tracker.follow(self._states)
        self._tracker.adopt(states, limits)
        ends = self._planner.plan(states, limits)
        if any(state.is_missing or (state.has_ended and not state.split.is_closed) for state in states):
            self._is_listing_stale = True  # a split has gone, or its children are due
        self._note(states, ends)
        if not ends and base is start:
            return start
        positions = {**base.positions, **{s: with_quiet(self._states[s], end) for s, end in ends.items()}}
        refresh_idle(positions, self._states.values())
        listed = listing.lineage.splits
        kept = {s: p for s, p in positions.items() if s in listed or not isinstance(p, Closed)}
        end = replace(self._offsets(kept), consumers={**start.consumers, **self.registered})
        # Run again after a restart, the first batch would be given another start; and after a loss
        # that is tolerated a batch does not start where the last one ended.
        starts_elsewhere = base is not start or start == self._initial
        return replace(end, start=base.positions) if starts_elsewhere else end

    def ranges(self, start: Offsets, end: Offsets) -> Sequence[SplitRange]:
        """See `SplitEnumerator.ranges`."""
        self._check_streams(end)
        ranges = self._known(start.ranges_to(end))
        self._tracker.rerun({r.split: r.start for r in ranges})
        return ranges

    def bounded(self, before: int | None = None) -> Sequence[SplitRange]:
        """The ranges of a read that ends: from the starting positions to the tips of now.

        Args:
            before: only what arrived before this instant (microseconds).
        """
        start = self.initial()
        splits = self._current_listing().lineage.splits
        states = [self._probe.state(split, start.position(split_id)) for split_id, split in splits.items()]
        ends = self._planner.targets(states) if before is None else self._planner.ends_before(states, before)
        return self._known(start.ranges_to(start.with_positions(ends)))

    @property
    def millis_behind_latest(self) -> Mapping[SplitId, int]:
        """How far the last batch's end is from the tip (ms), for each split that is being read."""
        return self._lag

    def newest(self, start: Offsets) -> Offsets:
        """The newest positions known, be they planned or not."""
        positions = dict(start.positions)
        for split_id, state in self._states.items():
            if state.seen and split_id in positions:
                positions[split_id] = After(state.seen[-1].number, arrival=state.seen[-1].arrival)
        return start.with_positions(positions)

    def _current_listing(self) -> _Listing:
        listing = self._listing
        interval = int(self._settings.discovery_interval * 1_000_000)
        if listing is None:
            self.discover()
        elif self._is_listing_stale or self._log.server_time() - listing.at >= interval:
            try:
                self.discover()
            except ServiceError as error:
                # A listing that is a little old does no harm; one that can't be had at all does.
                if not (error.retryable or (error.missing and not self._data_loss.fail)):
                    raise
                _log.warning("shards could not be listed, going on with those known: %s", error)
                self._listing = replace(listing, at=self._log.server_time())
        assert self._listing is not None  # noqa: S101 - set by discover
        return self._listing

    def _unlisted(self, splits: Sequence[Split], infos: Mapping[str, StreamInfo]) -> list[Split]:
        """Splits that have gone from streams that are still the same, and may be read nevertheless."""
        if self._listing is None:
            return []
        before = {name: info.created for name, info in self._listing.infos.items()}
        listed = {split.id for split in splits}
        gone = self._tracker.unlisted(self._states, listed)
        return [split for split in gone if before.get(split.id.stream) == infos[split.id.stream].created]

    def _check_streams(self, offsets: Offsets) -> None:
        others = sorted(offsets.streams - set(self._settings.streams))
        if others:
            raise OptionError(
                f"the checkpoint belongs to other streams: it holds offsets of {', '.join(others)}, "
                f"and option 'streamName' names {', '.join(self._settings.streams)}; use a checkpoint "
                "of its own for each set of streams"
            )

    def _offsets(self, positions: dict[SplitId, Position]) -> Offsets:
        assert self._listing is not None  # noqa: S101 - nothing is handed out before a discovery
        created = {name: info.created for name, info in self._listing.infos.items()}
        return Offsets(positions, created, frozenset(self._settings.streams), consumers=self.registered)

    def _without_lost(self, start: Offsets, listing: _Listing) -> Offsets:
        """`start` as it is, or, after a loss that is tolerated, without what is gone."""
        positions = dict(start.positions)
        listed = listing.lineage.splits
        is_lossless = True
        for stream, info in listing.infos.items():
            known = start.created.get(stream)
            if known is not None and known // 1000 != info.created // 1000:
                self._data_loss.report(f"stream {stream} was deleted and created again since the last batch")
                is_lossless = False
                positions = {
                    s: p for s, p in positions.items() if s.stream != stream or _is_within(p, listed.get(s))
                }
                self._states = {s: f for s, f in self._states.items() if s.stream != stream}
        lost = [s for s, p in positions.items() if s not in listed and not isinstance(p, Closed)]
        if lost:
            names = ", ".join(map(str, sorted(lost)))
            self._data_loss.report(f"shards have vanished before they were read to their end: {names}")
            is_lossless = False
            positions = {s: p for s, p in positions.items() if s not in lost}
        return start if is_lossless else start.with_positions(positions)

    def _readable_states(self, base: Offsets, listing: _Listing) -> list[SplitState]:
        readable = listing.lineage.readable(base.drained)
        states = {split.id: self._state_of(split, base.position(split.id)) for split in readable}
        self._states = states
        if self._wants_targets:
            self._wants_targets = False
            scouts = [self._new_state(s, base.position(s.id)) for s in listing.lineage.splits.values()]
            scouts = [state for state in scouts if not isinstance(state.position, Closed)]
            self._targets = self._planner.targets(scouts)
            # Where they found nothing new, what they know is how long that has been so.
            states |= {s.split.id: s for s in scouts if s.split.id in states and not s.seen}
        if self._targets is None:
            return list(states.values())
        for split_id, state in states.items():
            if state.target is None and split_id in self._targets:
                state.aim(self._targets[split_id])
        return [state for state in states.values() if state.target not in (None, state.position)]

    def _state_of(self, split: Split, position: Position) -> SplitState:
        state = self._states.get(split.id)
        if state is None or not state.can_follow(position):
            return self._new_state(split, position)
        state.follow(position)
        return state

    def _new_state(self, split: Split, position: Position) -> SplitState:
        assert self._listing is not None  # noqa: S101 - splits come from a discovery
        state = self._probe.state(split, position)
        state.retention = int(self._listing.infos[split.id.stream].retention * 1_000_000)
        return state

    def _known(self, ranges: Sequence[SplitRange]) -> Sequence[SplitRange]:
        """The ranges with what is known of them that only helps to read them."""
        if not ranges:
            return ranges
        splits = self._current_listing().lineage.splits
        return [
            replace(
                r,
                expected=self._expected.get((r.split, r.end)),
                hash_range=splits[r.split].hash_range if r.split in splits else None,
            )
            for r in ranges
        ]

    def _note(self, states: Iterable[SplitState], ends: Mapping[SplitId, After | Closed]) -> None:
        """Keeps what reporting and reading want to know of the batch planned last."""
        self._expected = {}
        lag = {}
        for state in states:
            end = ends.get(state.split.id)
            count = len(state.seen)
            state.is_missing = False
            if isinstance(end, After):
                count = sum(1 for record in state.seen if record.sequence <= end.sequence)
                if not state.has_gap:
                    self._expected[state.split.id, end] = sum(r.count for r in state.seen[:count])
            behind = state.lag(count)
            lag[state.split.id] = 0 if isinstance(end, Closed) else behind
        self._lag = {split: behind for split, behind in lag.items() if behind is not None}
        if ends:
            self._log_lag()

    def _log_lag(self) -> None:
        now = self._log.server_time()
        if self._lag and now >= self._next_lag_line:
            self._next_lag_line = now + _LAG_LINE_INTERVAL
            lag = {str(split): behind for split, behind in sorted(self._lag.items())}
            _log.info("millisBehindLatest %s", json.dumps(lag))


def _is_within(position: Position, split: Split | None) -> bool:
    """Whether a position was reached in this very split, and not in one of the same name before it.

    Numbers rise with time: a split has no record with a lower number than the one it starts with.
    """
    if split is None or not isinstance(position, After):
        return False
    return 0 < int(split.starting_sequence) <= position.sequence
