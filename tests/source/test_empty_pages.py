"""Long runs of empty pages: only the service's word says that there is nothing."""

from __future__ import annotations

import pytest
from memory_log import S0, MemoryLog
from query import Query, check_exactly_once, new_enumerator, new_reader, read_range

from sluice.source.logs.stream_log import IteratorStart, Page
from sluice.source.model.splits import SplitId


class SparseLog(MemoryLog):
    """Gives a number of empty pages before the first records of every iterator."""

    def __init__(self, empty_pages: int) -> None:
        super().__init__()
        self.empty_pages = empty_pages
        self._left: dict[str, int] = {}

    def get_iterator(self, split: SplitId, start: IteratorStart) -> str | None:
        iterator = super().get_iterator(split, start)
        if iterator is not None:
            self._left[iterator] = self.empty_pages
        return iterator

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        left = self._left.pop(iterator, 0)
        behind = self.shards[split].records[-1:]
        if not left or not behind:
            return super().get_records(split, iterator, limit)
        _, at, _ = self._iterators[iterator]
        if int(behind[0].sequence_number) < at:
            return super().get_records(split, iterator, limit)
        self.calls["GetRecords"] += 1
        following = self._iterator(split, at)
        self._left[following] = left - 1
        return Page((), following, 3_600_000)


def filled(empty_pages: int) -> SparseLog:
    log = SparseLog(empty_pages)
    log.create("s", 2)
    for key in range(40):
        log.put("s", f"key {key}")
    log.pass_time(60)
    return log


@pytest.mark.parametrize("empty_pages", [1, 19, 20, 21, 60])
def test_a_batch_read_leaves_out_no_shard(empty_pages: int) -> None:
    """However many empty pages come first."""
    log = filled(empty_pages)
    ranges = new_enumerator(log, ["s"]).bounded()
    assert sum(len(read_range(new_reader(log), each)) for each in ranges) == 40


@pytest.mark.parametrize("empty_pages", [1, 19, 20, 21, 60])
def test_a_run_of_what_is_available_leaves_out_no_shard(empty_pages: int) -> None:
    """It ends where the service says that there is no more, and not after some empty pages."""
    log = filled(empty_pages)
    query = Query(log)
    query.enumerator.stop_at_available()
    while query.run_batch() is not None:
        pass
    assert len(query.numbers()) == 40


@pytest.mark.parametrize("empty_pages", [21, 60])
def test_a_streaming_query_gets_there(empty_pages: int) -> None:
    """A trigger reads some empty pages, and the next one continues behind them."""
    log = filled(empty_pages)
    records = [record for shard in log.shards.values() for record in shard.records]
    query = Query(log)
    query.run_to_end(empty_triggers=empty_pages)
    check_exactly_once(query, records)
    assert log.shards[S0].records
