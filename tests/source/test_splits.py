"""Lineage: parents are read before their children."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.source.model.splits import Lineage, Split, SplitId


def split(number: int, *parents: int) -> Split:
    return Split(SplitId("s", str(number)), tuple(map(str, parents)))


def ids(splits: list[Split]) -> list[str]:
    return [each.id.shard for each in splits]


def test_children_wait_for_all_parents() -> None:
    """After a merge both parents have to be drained."""
    lineage = Lineage([split(0), split(1), split(2, 0, 1)])
    assert ids(lineage.within_reach(set())) == ["0", "1"]
    assert ids(lineage.within_reach({SplitId("s", "0")})) == ["1"]
    assert ids(lineage.within_reach({SplitId("s", "0"), SplitId("s", "1")})) == ["2"]


def test_children_do_not_wait_for_parents_that_have_expired() -> None:
    """A parent that is not listed any more has no records left."""
    assert ids(Lineage([split(2, 0, 1)]).within_reach(set())) == ["2"]


@given(st.data())
def test_all_splits_become_readable_parents_first(data: st.DataObject) -> None:
    """In any lineage, if those that are readable are drained in any order."""
    count = data.draw(st.integers(1, 20))
    splits = [
        split(n, *data.draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True)) if n else ())
        for n in range(count)
    ]
    drained: list[SplitId] = []
    while reached := Lineage(splits).within_reach(set(drained)):
        for each in reached:
            assert all(SplitId("s", parent) in drained for parent in each.parents)
        drained.append(data.draw(st.sampled_from(reached)).id)
    assert len(drained) == count
