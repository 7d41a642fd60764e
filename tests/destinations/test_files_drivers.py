"""Two drivers of one query at a time: a disconnected one and its successor, in any order of their calls."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from fake_s3 import BACKOFF, retrier
from hypothesis import given, settings
from hypothesis import strategies as st
from test_files_protocol import SCHEMA, contents, sent
from worlds import EACH_STORE, World, Worlds, no_fault, nothing

from sluice.errors import CommitError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit


class Turns:
    """Lets one of two threads make its next call, in a given order; it has the turn until it asks again."""

    def __init__(self, order: Iterator[int]) -> None:
        self._order = order
        self._turn = next(order)
        self._left = {0, 1}
        self._changed = threading.Condition()
        self._me = threading.local()

    def begin(self, number: int) -> None:
        self._me.number = number

    def __call__(self, _number: int, _operation: str) -> None:
        me = self._me.number
        with self._changed:
            if self._turn == me:
                self._pass_on()
            assert self._changed.wait_for(lambda: self._turn == me, 60)

    def end(self) -> None:
        with self._changed:
            self._left.discard(self._me.number)
            self._pass_on()

    def _pass_on(self) -> None:
        self._turn = next(self._order)
        if self._turn not in self._left:
            self._turn = 1 - self._turn
        self._changed.notify_all()


class Drivers:
    """Of one query. The first commits or aborts batch 1; the second repeats it and continues."""

    def __init__(self, world: World, publish: str) -> None:
        self._world = world
        self._publish = publish
        self._name = uuid.uuid4().hex  # a run's id is never used twice
        self.logged = 0
        self.problems: list[str] = []

    def write(self, run: int, batch: int, *, fails: bool = False) -> None:
        """A batch as Spark runs it; it may fail, and does if another task `fails`."""
        epoch = Epoch("query-1", f"{self._name}-{run}", batch)
        prepared = []
        for partition in range(2):
            writer = self._world.destination(publish=self._publish).create_writer(
                SCHEMA, Origin("files", epoch.query, epoch.run, batch, partition, 1)
            )
            writer.write(contents(batch, partition))
            prepared += writer.prepare_commit()
            writer.close()
        made = EpochCommit(
            self._world.destination(publish=self._publish), epoch, retrier=retrier(), backoff=BACKOFF
        )
        if fails:
            made.abort(prepared)
            return
        try:
            made.commit(prepared)
        except CommitError:
            made.abort(prepared)
            raise
        self.logged = max(self.logged, batch + 1)

    def drive(self, turns: Turns, number: int, batches: int, *, fails: bool) -> None:
        turns.begin(number)
        # What one has staged for a batch that the other has committed may be gone: its query fails.
        with contextlib.suppress(CommitError, ServiceError):
            for batch in range(1, batches):
                self.write(number, batch, fails=fails)
        turns.end()

    def look(self) -> None:
        """What readers see is never more than was sent, and all that was logged."""
        logged, most = Counter(sent(self.logged)), Counter(sent(4))
        reads = [self._world.by_manifests, *([self._world.by_listing] if self._publish == "visible" else [])]
        for read in reads:
            found = read()
            if not logged <= found <= most:
                self.problems.append(f"{read.__name__}, {self.logged} logged: {found}")


@EACH_STORE
@pytest.mark.parametrize("publish", ["manifest", "visible"])
@settings(max_examples=25)
@given(order=st.lists(st.sampled_from([0, 0, 0, 1, 1, 1]), min_size=40, max_size=120), aborts=st.booleans())
def test_each_batch_is_that_of_one_driver(
    worlds: Worlds, store: str, publish: str, order: list[int], *, aborts: bool
) -> None:
    """Readers see each row once at every moment. The loser's files are gone after the last batch."""
    world = worlds.new(store)
    drivers = Drivers(world, publish)
    turns = Turns(iter([*order, *[1] * 10_000]))
    drivers.write(3, 0)
    world.fault = turns
    world.changed = drivers.look
    threads = [
        threading.Thread(target=drivers.drive, args=(turns, number, batches), kwargs={"fails": fails})
        for number, batches, fails in ((0, 2, aborts), (1, 3, False))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    world.fault, world.changed = no_fault, nothing
    assert drivers.problems == []

    for batch in range(drivers.logged, 4):
        drivers.write(2, batch)
    assert world.by_manifests() == Counter(sent(4))
    assert world.by_listing() == Counter(sent(4))
    assert world.leftovers() == set()
