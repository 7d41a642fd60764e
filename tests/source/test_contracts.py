"""The protocols of `sluice.source`, and the classes that implement them."""

from __future__ import annotations

from memory_log import new_log
from query import new_enumerator, new_reader

from sluice.source import Offsets, Split, SplitEnumerator, SplitRange, SplitReader, StreamLog


def test_the_classes_implement_the_protocols() -> None:
    """The type checker says so of the annotations here."""
    log = new_log()
    _: StreamLog = log
    enumerator: SplitEnumerator[Split, Offsets] = new_enumerator(log, ["s"])
    reader: SplitReader[SplitRange] = new_reader(log)
    log.put("s", "key")
    start = enumerator.initial()
    (split_range,) = enumerator.ranges(start, enumerator.advance(start))
    assert [len(page) for page in reader.read(split_range)] == [1]
    assert len(enumerator.discover()) == 1
