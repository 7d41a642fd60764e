"""What Spark is given for each trigger of a query of many shards, as benchmark ``planning`` measures it."""

from __future__ import annotations

import pytest
from integration.benchmarks import planning

SHARDS = 300


@pytest.mark.parametrize("pushed", [False, True], ids=["polling", "efo"])
def test_bytes_of_a_trigger(*, pushed: bool) -> None:
    """A shard took 144 bytes of each offset, and 300 of each report. A partition has its own shards alone."""
    cost = planning._measure(SHARDS, pushed)

    assert cost.offset < 30 * SHARDS
    assert cost.report < 70 * SHARDS
    assert cost.partitions < 400 * SHARDS
    assert cost.largest < 6_000
