"""Lineage: parents are read before their children."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sluice.source.model.splits import Split, SplitId, within_reach


def split(number: int, *parents: int) -> Split:
    return Split(SplitId("s", str(number)), tuple(map(str, parents)))


def reached(splits: Sequence[Split], *drained: int) -> list[str]:
    found = within_reach({each.id: each for each in splits}, {SplitId("s", str(n)) for n in drained})
    return [each.id.shard for each in found]


def test_children_wait_for_all_parents() -> None:
    """After a merge both parents have to be drained."""
    splits = [split(0), split(1), split(2, 0, 1)]
    assert reached(splits) == ["0", "1"]
    assert reached(splits, 0) == ["1"]
    assert reached(splits, 0, 1) == ["2"]


def test_children_do_not_wait_for_parents_that_have_expired() -> None:
    """A parent that is not listed any more has no records left."""
    assert reached([split(2, 0, 1)]) == ["2"]


@given(st.data())
def test_all_splits_become_readable_parents_first(data: st.DataObject) -> None:
    """In any lineage, if those that are readable are drained in any order."""
    count = data.draw(st.integers(1, 20))
    splits = [
        split(n, *data.draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True)) if n else ())
        for n in range(count)
    ]
    drained: list[int] = []
    while found := reached(splits, *drained):
        assert all(int(parent) in drained for each in found for parent in splits[int(each)].parents)
        drained.append(int(data.draw(st.sampled_from(found))))
    assert len(drained) == count
