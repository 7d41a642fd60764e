"""Puts together what reads a log: enumerator and planner beside the driver, readers in tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from sluice.retry import Retrier, patient
from sluice.source.checked_log import CheckedLog
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import AtHorizon, AtTime, Position, SplitRange
from sluice.source.splits import Split, SplitId
from sluice.source.stream_log import AnyRecord, IteratorStart, StreamLog

if TYPE_CHECKING:
    from sluice.source.contracts import ReadTask
    from sluice.source.enumerator import StreamEnumerator
    from sluice.source.log_source import LogSource
    from sluice.source.planner import Planner
    from sluice.source.probe import Probe, ProbeSettings
    from sluice.source.probe_session import ProbeSession
    from sluice.source.settings import SourceSettings
    from sluice.source.split_state import SplitState
    from sluice.source.subscriptions import Subscriptions

__all__ = ["assemble_enumerator", "positions_by_settings", "probe_settings", "read_side_by_side"]

_POLL_INTERVAL: Final = 0.1
"""Seconds until the planner reads a split again if the service sets no limit. Spark asks 90 times a
second."""
_UNLIMITED_BURST: Final = 1000
"""More reads in a second than the planner makes."""


def probe_settings(reads_per_second: int | None) -> ProbeSettings:
    """How rarely the planner reads a split.

    Args:
        reads_per_second: of one split, for all readers together; None: any number.
    """
    from sluice.source.probe import ProbeSettings  # noqa: PLC0415 - tasks do not probe

    if reads_per_second is None:
        return ProbeSettings(
            time.sleep, seconds_per_read=_POLL_INTERVAL, burst=_UNLIMITED_BURST, first_burst=_UNLIMITED_BURST
        )
    return ProbeSettings(time.sleep, burst=max(1, reads_per_second - 1), first_burst=reads_per_second)


def positions_by_settings(
    settings: SourceSettings, splits: Iterable[Split], now: int
) -> Mapping[SplitId, Position]:
    """Every split at the starting position of the common options (`now` in microseconds)."""
    instant = now if settings.starting == "LATEST" else settings.starting_timestamp
    start: Position = AtHorizon(pinned=now)
    if settings.starting != "EARLIEST" and instant is not None:
        start = AtTime(min(instant, now), pinned=now)
    return {split.id: start for split in splits}


def _initial_positions(
    source: LogSource, probe: Probe, planner: Planner, splits: Sequence[Split], now: int
) -> Mapping[SplitId, Position]:
    """The starting positions in a log that has positions. They replace times: then the times of later records
    do not matter.
    """
    positions = source.initial_positions(splits, now)

    def find(_session: ProbeSession, state: SplitState) -> Position | None:
        position = state.position
        if not isinstance(position, AtTime):
            return None
        start = IteratorStart("AT_TIMESTAMP", timestamp=position.instant)
        if position.instant >= now:
            start = IteratorStart("LATEST")
        return replace(position, number=probe.log.number_of(state.split.id, start))

    states = [probe.state(split, positions[split.id]) for split in splits if split.id in positions]
    return {**positions, **planner.pool.for_all(states, find)}


def assemble_enumerator(
    source: LogSource, log: StreamLog, subscriptions: Subscriptions | None
) -> StreamEnumerator:
    """The enumerator of a log; it closes the log."""
    from sluice.source.enumerator import EnumeratorSettings, StreamEnumerator  # noqa: PLC0415 - not in tasks
    from sluice.source.planner import Planner, PlannerSettings  # noqa: PLC0415
    from sluice.source.probe import Probe  # noqa: PLC0415

    checked = CheckedLog(log, source.name)
    common = source.settings
    data_loss = DataLossPolicy(checked, common.fail_on_data_loss, checked.server_time, source=source.name)
    probe = Probe(checked, data_loss, source.probe_settings())
    planner = Planner(probe, checked.server_time, PlannerSettings(common.fail_on_data_loss, source.max_drift))
    by_number = partial(_initial_positions, source, probe, planner)
    settings = EnumeratorSettings(
        list(source.streams or [source.name]),
        by_number if checked.has_numbers else source.initial_positions,
        common.discovery_interval,
        source.starting_text,
        max_family=common.splits_per_task,
    )
    return StreamEnumerator(settings, probe, planner, subscriptions=subscriptions)


def read_side_by_side(source: LogSource, task: ReadTask) -> Iterator[tuple[SplitRange, Sequence[AnyRecord]]]:
    """The pages of a task's ranges as they come: those of one range in order."""
    from sluice.source.fetcher import fetch_side_by_side  # noqa: PLC0415 - not beside the driver
    from sluice.source.reader import RangeReader, ReadSettings  # noqa: PLC0415

    pushed = source.pushed_cursors(task)

    def is_buffered(split_range: SplitRange) -> bool:
        return pushed is not None and pushed.is_buffered(split_range.split)

    def read(split_range: SplitRange, pause: Callable[[float], None]) -> Iterator[Sequence[AnyRecord]]:
        patience = source.settings.read_retry_duration
        connect = partial(source.create_counting_log, pause, task.figures)
        connected = Retrier(sleep=pause).call(patient(patience), connect)
        with contextlib.closing(CheckedLog(connected, source.name)) as log:
            expiry = {} if split_range.expiry is None else {split_range.split.stream: split_range.expiry}
            data_loss = DataLossPolicy(
                log, source.settings.fail_on_data_loss, log.server_time, expiry, source.name
            )
            settings = ReadSettings(
                source.page_limit,
                source.read_interval,
                pause,
                patience=patience,
            )
            open_cursor = None if pushed is None else partial(pushed.open, log, data_loss)
            yield from RangeReader(log, data_loss, settings, open_cursor, task.figures).read(split_range)

    # One thread reads what is buffered. Every other range is waited for in a thread of its own, so these
    # come first.
    ordered = sorted(task.ranges, key=is_buffered)
    at_once = 1 + sum(not is_buffered(each) for each in task.ranges)
    return fetch_side_by_side(ordered, read, at_once=at_once)
