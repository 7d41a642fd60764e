"""A subscriber of a service that fails in any way at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from event_streams import event
from hypothesis import given
from hypothesis import strategies as st
from scripted import AFTER, AT, HORIZON, HOUR, IN_USE, RESET, Time, error, start

from sluice.kinesis.subscriptions.subscriber import (
    PayloadSource,
    Subscriber,
    SubscriberSettings,
    Timing,
)
from sluice.kinesis.subscriptions.subscription import CLOSED
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

RECORDS = [3 * n + 4 for n in range(40)]
"""Their sequence numbers differ in length, and there are others between them."""


def encoded(made: dict[str, Any]) -> bytes:
    return json.dumps(made).encode()


@dataclass
class Shard:
    """A service with 40 records. Each call and each event takes the next of `faults`, until none is left."""

    faults: list[str]
    sizes: list[int]
    time: Time = field(default_factory=Time)

    def fault(self) -> str:
        return self.faults.pop() if self.faults else "none"

    def size(self) -> int:
        return self.sizes.pop() if self.sizes else 3

    def subscribe(self, _split: SplitId, start: IteratorStart) -> PayloadSource:
        fault = self.fault()
        number = None if start.sequence_number is None else int(start.sequence_number)
        if fault == "refused":
            raise error("LimitExceededException", retryable=True)
        if fault == "in use":
            raise IN_USE
        if fault == "unknown number" and start.kind == AFTER and number not in RECORDS:
            raise error("InvalidArgumentException")
        first = 0 if number is None else sum(each <= number - (start.kind == AT) for each in RECORDS)
        return ShardSubscription(self, first)


class ShardSubscription:
    """One subscription, from the record with the index `at` on."""

    def __init__(self, shard: Shard, at: int) -> None:
        self._shard = shard
        self._at = at
        self._is_closed = False

    def next_payload(self) -> bytes | None:
        if self._is_closed:
            raise error(CLOSED)
        self._shard.time.pass_by(0.1)
        fault = self._shard.fault()
        if fault == "end":
            return None
        if fault == "damage":
            return b"\0"
        self._fail(fault)
        self._delay(fault)
        self._rewind(fault)
        last = RECORDS[self._at - 1] if self._at else 1
        if fault in ("idle", "moved on"):
            # Records follow, or the end: it is not at the tip.
            return encoded(event(continuation=last + 2 * (fault == "moved on"), millis_behind=1_000))
        records = RECORDS[self._at : self._at + self._shard.size()]
        self._at += len(records)
        return encoded(event(records) if records else event(continuation=last, children=["a", "b"]))

    def _fail(self, fault: str) -> None:
        if fault == "reset":
            raise RESET
        if fault == "throttled":
            raise error("KMSThrottlingException", retryable=True)
        if fault == "silence":
            self._shard.time.pass_by(20)
            assert self._is_closed
            raise error(CLOSED)

    def _delay(self, fault: str) -> None:
        if fault == "long":
            self._shard.time.pass_by(10)
        self._shard.time.now += {"away": 290, "days": 30 * HOUR}.get(fault, 0)

    def _rewind(self, fault: str) -> None:
        if fault == "back":
            self._at = max(0, self._at - 4)
        if fault == "horizon":
            self._at = 0

    def close(self) -> None:
        self._is_closed = True


FAULTS = [
    *("none", "refused", "in use", "unknown number", "reset", "end", "damage", "throttled", "silence"),
    *("long", "away", "days", "back", "horizon", "idle", "moved on"),
]


@given(
    st.lists(st.sampled_from(FAULTS), max_size=40),
    st.lists(st.integers(1, 6), max_size=30),
    st.sampled_from([HORIZON, start(AT, RECORDS[0]), IteratorStart("AT_TIMESTAMP", timestamp=0)]),
)
def test_every_record_comes_once_and_in_order(
    faults: list[str], sizes: list[int], begin: IteratorStart
) -> None:
    """With any sequence of faults, renewals, waits and repetitions, to the end of the shard."""
    shard = Shard(list(faults), list(sizes))
    time = shard.time
    subscriber = Subscriber(
        shard.subscribe,
        SplitId("s", "shard"),
        begin,
        SubscriberSettings(Backoff(100, 1.0, 4.0, 2.0)),
        Timing(time.clock, time.sleep, lambda: 0.3, time.watchdog),
    )
    found: list[str] = []
    has_ended = False
    while not has_ended:
        payload, head = subscriber.next_event()
        sent = [each["SequenceNumber"] for each in json.loads(bytes(payload))["Records"]]
        assert sent[head.skipped :] == head.numbers
        assert len(head.arrivals) == len(head.numbers)
        found += head.numbers
        has_ended = head.has_ended

    assert found == [str(number) for number in RECORDS]
