"""Reading one range: iterators that expire, and ranges that cannot be read."""

from __future__ import annotations

import pytest
from memory_log import S0, MemoryLog, put_many
from query import (
    Query,
    check_exactly_once,
)

from sluice.errors import ServiceError
from sluice.source.data_loss import DataLossPolicy
from sluice.source.offsets import After, AtTime, SplitRange
from sluice.source.reader import RangeReader, ReadSettings
from sluice.source.splits import SplitId


def test_iterator_that_expires_between_two_pages_is_replaced() -> None:
    """A task whose iterator expires goes on right behind the last record it delivered."""
    log = MemoryLog()
    log.create("s")
    query = Query(log, ["s"], page_limit=10)
    records = put_many(log, 95)
    reads = iter(range(1000))

    def expire(operation: str, _: SplitId) -> Exception | None:
        if operation == "GetRecords" and next(reads) % 3 == 2:
            log.expire_iterators()
        return None

    log.fault = expire
    query.run_to_end()
    check_exactly_once(query, records)


def test_a_range_that_ends_before_it_starts_is_an_error() -> None:
    """Offsets that no planner logged do not keep a task reading for ever."""
    log = MemoryLog()
    log.create("s")
    records = put_many(log, 10)
    log.pass_time(5)
    backwards = SplitRange(S0, AtTime(log.now), After(records[-1].sequence_number))
    data_loss = DataLossPolicy(log, fail=True, now=log.server_time)
    with pytest.raises(ServiceError, match="without it"):
        list(RangeReader(log, data_loss, ReadSettings(100, 0.2, log.sleep)).read(backwards))
