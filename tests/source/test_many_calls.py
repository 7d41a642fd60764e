"""What is not made anew for each of the calls that Spark makes while there is no data."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from memory_log import MemoryLog
from query import Query

from sluice.source.model.splits import Split, SplitId, held_back
from sluice.source.planning import split_tracker


@pytest.fixture
def query() -> Query:
    log = MemoryLog()
    log.create("s", 4)
    for number in range(40):
        log.put("s", str(number))
    made = Query(log)
    made.run_while_new()
    return made


def test_what_a_batch_may_read_is_found_once_for_each_listing_and_each_end_of_a_split(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes time in proportion to all splits, and the same ones come out."""
    found: list[int] = []

    def counted(splits: Sequence[Split], width: int) -> frozenset[SplitId]:
        found.append(width)
        return held_back(splits, width)

    monkeypatch.setattr(split_tracker, "held_back", counted)
    for _ in range(90):
        query.plan()
    assert found == []

    query.log.split(SplitId("s", min(query.log.shards).shard))
    for number in range(40):
        query.log.put("s", str(number))
    query.log.pass_time(11)  # so that the next listing has it
    query.run_while_new()
    query.plan()
    drained = {split.shard for split in query.last_end.drained}
    assert len(drained) == 1
    assert drained.isdisjoint(split.shard for split in query.enumerator._splits.states)
    query.run_to_end()

    assert sorted(query.numbers()) == sorted({*query.numbers()})
    assert len(query.numbers()) == 80
