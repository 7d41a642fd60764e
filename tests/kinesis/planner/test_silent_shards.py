"""Records that come while an agent or a subscription is silent are read within seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fake_agent import Planning, plannings
from memory_log import S0, MemoryLog, new_log, put_to
from query import new_enumerator

from sluice.kinesis.shared.protocol import EventReceived, Server, Subscribe
from sluice.source.logs.stream_log import Record
from sluice.source.model.offsets import Offsets
from sluice.source.planning.enumerator import StreamEnumerator
from sluice.source.state.cut_points import CutPoint
from sluice.source.state.subscriptions import SubscriptionProgress


@pytest.fixture
def make() -> Iterator[Callable[..., Planning]]:
    with plannings() as make:
        yield make


class Query:
    """Triggers, one a second, over a log and an agent whose last word is that the shard is at its tip."""

    def __init__(self, planning: Planning) -> None:
        self.log: MemoryLog = new_log()
        self.planning = planning
        self.enumerator: StreamEnumerator = new_enumerator(
            self.log, [S0.stream], subscriptions=planning.client
        )
        self.agent = planning.listening()
        start = self.enumerator.initial()
        (record,) = put_to(self.log, S0, 1)
        self.enumerator.advance(start)
        subscribe = self.agent.received()
        assert isinstance(subscribe, Subscribe)
        self.generation = subscribe.generation
        self.says(record)
        self.end: Offsets = self.enumerator.advance(start)
        assert self.enumerator.advance(self.end) is self.end
        self.reads = self.log.calls["GetRecords"]

    def says(self, *records: Record) -> None:
        """An event at the tip, with these records."""
        points = tuple(CutPoint(each.sequence_number, each.arrival, 1, 1, each.arrival) for each in records)
        progress = SubscriptionProgress(points, 0, caught_up_at=self.log.now)
        version = self.version
        first = points[0].number if points else None
        self.agent.send(EventReceived(S0, self.generation, first, progress, Server("127.0.0.1", 1, b"start")))
        self.planning.until(lambda: self.version != version)

    @property
    def version(self) -> int:
        return self.planning.client._subscriptions.shards[S0]._version

    def pass_second(self, *, speaks: bool) -> bool:
        """One second later: whether a trigger finds that something is new."""
        self.log.pass_time(1.0)
        self.planning.pass_time(1)
        if speaks:
            self.agent.answer()
            link = self.planning.client._supervisor._agent.link  # type: ignore[union-attr]
            self.planning.until(lambda: link.silence == 0.0)
        end = self.enumerator.advance(self.end)
        is_new, self.end = end is not self.end, end
        return is_new


@pytest.mark.parametrize(("speaks", "seconds"), [(False, 5), (True, 10)])
def test_new_records_are_found(make: Callable[..., Planning], *, speaks: bool, seconds: int) -> None:
    """By polling: 5 s after the last word of an agent, 10 s after the last event of a subscription. Nothing
    is polled until then.
    """
    query = Query(make())
    (record,) = put_to(query.log, S0, 1)

    passed = 1
    while not query.pass_second(speaks=speaks):
        assert query.log.calls["GetRecords"] == query.reads
        passed += 1
        assert passed < 60

    assert passed == seconds
    assert query.end.position(S0).number == record.sequence_number  # type: ignore[union-attr]


def test_a_shard_that_is_pushed_again_is_not_polled(make: Callable[..., Planning]) -> None:
    """The agent has caught up with what was polled meanwhile."""
    query = Query(make())
    (record,) = put_to(query.log, S0, 1)
    while not query.pass_second(speaks=False):
        pass
    query.says(record)
    query.pass_second(speaks=True)
    reads = query.log.calls["GetRecords"]
    for _ in range(5):
        (record,) = put_to(query.log, S0, 1)
        query.says(record)
        assert query.pass_second(speaks=True)

    assert query.log.calls["GetRecords"] == reads
    assert query.end.position(S0).number == record.sequence_number  # type: ignore[union-attr]
