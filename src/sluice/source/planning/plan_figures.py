"""The figures of the last planned batch: its lag, and its number of records."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping

from sluice.source.model.offsets import After, Closed, Position
from sluice.source.model.splits import SplitId
from sluice.source.state.split_state import SplitState

__all__ = ["PlanFigures"]

_log = logging.getLogger(__name__)

_LAG_LINE_INTERVAL = 10.0
"""Seconds between two log lines."""


class PlanFigures:
    """The figures of the last planned batch.

    Args:
        clock: monotonic seconds.

    Attributes:
        lag: by split, how far the end of the batch is from the tip (milliseconds). A split is missing
            while its lag is unknown.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lag: Mapping[SplitId, int] = {}
        self._records: Mapping[tuple[SplitId, Position], int] = {}
        self._next_lag_line = -math.inf

    def records(self, split: SplitId, end: Position) -> int | None:
        """Returns how many records of a split the batch has; None if unknown, or if the batch ends
        elsewhere.
        """
        return self._records.get((split, end))

    def observe(self, states: Collection[SplitState], ends: Mapping[SplitId, After | Closed]) -> None:
        """Records a planned batch, or, without `ends`, that nothing is new."""
        now = self._clock()
        lag: dict[SplitId, int | None] = {}
        records: dict[tuple[SplitId, Position], int] = {}
        for state in states:
            split, end = state.split.id, ends.get(state.split.id)
            count = len(state.cut_points)
            if isinstance(end, After):
                count = state.count_up_to(end)
                if not state.has_gap:
                    records[split, end] = sum(point.count for point in state.cut_points[:count])
            lag[split] = 0 if isinstance(end, Closed) else state.lag(count, now)
        self._records = records
        self.lag = {split: millis for split, millis in lag.items() if millis is not None}
        if ends and self.lag and now >= self._next_lag_line:
            self._next_lag_line = now + _LAG_LINE_INTERVAL
            _log.info("millisBehindLatest %s", json.dumps({str(key): lag[key] for key in sorted(lag)}))
