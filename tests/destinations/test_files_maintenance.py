"""Checkpoints and compaction under arbitrary failures: the committed rows are the same at every moment."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from fake_s3 import Inline
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_files_protocol import KINDS, Faults, Spark, check_readers, moods, sent
from worlds import EACH_STORE, EACH_WAY, World, Worlds, no_fault, nothing

from sluice.destinations.files.commits import read_commits
from sluice.destinations.files.maintenance import Maintenance, Upkeep

BATCHES = 4
TARGET = 10_000  # bytes: all files of a partition


@pytest.fixture(autouse=True, scope="module")
def _folds_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.destinations.files.destination.FOLD_AFTER", 1)
        yield


def maintain(world: World, target: int | None = TARGET, *, after: float = 0.0) -> Upkeep:
    """As `sluice files compact` does, in a process without faults."""
    made = Maintenance(
        world.reader(),
        world.layout,
        target=target,
        retention=0.0,
        executor=Inline,
        now=lambda: time.time() + after,
    )
    return made.run()


class Intruder:
    """Checks the readers after each change; at some changes another process maintains the path.

    Args:
        spark: the query.
        target: of the other process.
        waits: numbers of changes after which it comes.
    """

    def __init__(self, spark: Spark, target: int | None, waits: list[int]) -> None:
        self._spark = spark
        self._target = target
        self._waits = waits
        self._seen = 0
        self._is_inside = False

    def __call__(self) -> None:
        check_readers(self._spark)
        self._seen += 1
        if self._is_inside or not self._waits or self._seen <= self._waits[0]:
            return
        self._waits.pop(0)
        self._seen, self._is_inside = 0, True
        done = maintain(self._spark.world, self._target)
        event(f"another process {'merges' if done.made else 'folds' if done.folded else 'does nothing'}")
        self._is_inside = False
        check_readers(self._spark)


@EACH_STORE
@EACH_WAY
@settings(max_examples=12)
@given(
    faults=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(KINDS)), max_size=10),
    drawn=st.lists(st.integers(0, 8), max_size=60),
    waits=st.lists(st.integers(0, 30), max_size=6),
    merges=st.booleans(),
)
def test_what_is_committed_does_not_change(  # noqa: PLR0917 - drawn
    worlds: Worlds,
    store: str,
    publish: str,
    faults: list[tuple[int, str]],
    drawn: list[int],
    waits: list[int],
    *,
    merges: bool,
) -> None:
    """The driver is killed between any two calls, and another process maintains the path at any moment."""
    world = worlds.new(store)
    world.fault = Faults(faults)
    target = TARGET if merges and publish != "visible" else None
    spark = Spark(world, publish, moods(drawn), target=target)
    world.changed = Intruder(spark, TARGET, waits)
    while spark.logged < BATCHES and spark.runs < 20:
        spark.run(BATCHES)
    world.fault = no_fault
    world.arrive()
    spark.moods = moods([])
    spark.run(BATCHES + 3)
    world.changed = nothing
    done = [maintain(world, after=7200.0) for _ in range(3)]  # the second deletes what the first has replaced

    assert spark.seen_wrong == []
    assert spark.logged == BATCHES + 3
    everything = Counter(sent(BATCHES + 3))
    assert world.by_manifests() == world.by_listing() == everything
    if publish == "symlink":
        assert world.by_symlinks() == everything
    assert world.leftovers() == set()
    assert (done[2].folded, done[2].made, done[2].deleted) == (0, 0, 0)
    commits = read_commits(world.reader(), world.layout, Inline)
    assert len(commits.manifests) <= 1
    assert commits.superseded == ()
    assert commits.checkpoint.replaced == ()
    assert bool(done[2].failures) == (publish == "visible")
