"""The public contracts, and that what is built fulfils them."""

from __future__ import annotations

from memory_log import MemoryLog
from query import make_enumerator

from sluice.source import Offsets, Split, SplitEnumerator, SplitRange, SplitReader, StreamLog
from sluice.source.data_loss import DataLossPolicy
from sluice.source.reader import RangeReader, ReadSettings


def test_what_is_built_fulfils_the_contracts() -> None:
    """For the type checker as much as for a run: the protocols of FLIP-27 are those in use."""
    log = MemoryLog()
    log.create("s")
    service: StreamLog = log
    enumerator: SplitEnumerator[Split, Offsets] = make_enumerator(log, ["s"])
    data_loss = DataLossPolicy(service, fail=True, now=log.server_time)
    reader: SplitReader[SplitRange] = RangeReader(service, data_loss, ReadSettings(10, 0.2, log.sleep))
    log.put("s", "key")
    start = enumerator.initial()
    (split_range,) = enumerator.ranges(start, enumerator.advance(start))
    assert [len(page) for page in reader.read(split_range)] == [1]
    assert len(enumerator.discover()) == 1
