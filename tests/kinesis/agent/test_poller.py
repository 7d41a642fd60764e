"""A shard that an agent polls: its pages, their pace, and when the agent leaves the shard to tasks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from kinesis_transport import OPTIONS, Answer, Transport, answer, forget_process_state, refusal
from memory_log import BROKEN, S0, SECOND, THROTTLED, MemoryLog, new_log, put_to

from sluice.aws.calling.clients import client_for
from sluice.errors import ServiceError
from sluice.kinesis.agent.buffer_budget import BufferBudget
from sluice.kinesis.agent.poller import EncodedPage, Poller, PollerSettings, PollingPace, Timing, page_log
from sluice.kinesis.agent.shard_buffer import ShardBuffer
from sluice.kinesis.log.client import KinesisLog
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.shared.protocol import FAR_BEHIND, INTEGRITY_PROBLEM
from sluice.kinesis.subscriptions.events import EventHead, decode_page
from sluice.retry import Backoff
from sluice.source.logs.stream_log import IteratorStart, Page, Record
from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId

SETTINGS = PollerSettings(1_900, 0.2, Backoff(3, 0.3, 1.0, 1.5))
HORIZON = IteratorStart("TRIM_HORIZON")
PATIENT = 60.0


class Space(ShardBuffer):
    """Room for everything; it notes all requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def make_space(self, size: int) -> None:
        self.asked.append(size)

    def fit_space(self, size: int) -> None:
        self.asked.append(("fit", size))

    def give_back_space(self) -> None:
        self.asked.append("back")

    def wait_until_drained(self) -> None:
        self.asked.append("drained")


class Pages:
    """The pages of a `MemoryLog` as an agent gets them, and when each was asked for."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.read_at: list[float] = []
        self.takes = 0.0
        """Seconds until an answer is here."""
        self.behind: int | None = None
        """What pages say of the tip; None: the truth."""

    def get_records(self, split: SplitId, iterator: str, limit: int) -> Page:
        self.read_at.append(self.log.monotonic())
        page = self.log.get_records(split, iterator, limit)
        self.log.pass_time(self.takes)
        behind = page.millis_behind if self.behind is None else self.behind
        body = b"-".join(record.sequence_number.encode() for record in page.records)
        return EncodedPage(page.records, page.next_iterator, behind, len(body), body, len(page.records))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


class Bench:
    """A poller of one shard, by the log's clock."""

    def __init__(self, log: MemoryLog, start: IteratorStart = HORIZON, **settings: Any) -> None:
        self.log = log
        pages: Any = Pages(log)
        self.pages = pages
        self.space = Space()
        self.figures = ReadFigures()
        self.poller = Poller(
            self.pages,
            S0,
            start,
            self.space,
            replace(SETTINGS, **settings),
            figures=self.figures,
            timing=Timing(log.monotonic, log.sleep, lambda: 0.0),
        )

    def next(self) -> EventHead:
        return self.poller.next_event()[1]

    def until_idle(self) -> list[str]:
        """The numbers of all records, until a page at the tip says that there are no more."""
        numbers: list[str] = []
        while True:
            head = self.next()
            numbers += head.numbers
            if head.has_ended or (not head.numbers and head.millis_behind == 0):
                return numbers


def numbers_of(records: Iterable[Record]) -> list[str]:
    return [record.sequence_number for record in records]


def at(record: Record) -> IteratorStart:
    return IteratorStart("AT_SEQUENCE_NUMBER", sequence_number=record.sequence_number)


def test_records_come_once_in_order_and_the_start_comes_first() -> None:
    """The record that the start names shows that none is missing, so it comes, too."""
    log = new_log(page_size=3)
    records = put_to(log, S0, 10)
    bench = Bench(log, at(records[4]))

    assert bench.until_idle() == numbers_of(records[4:])
    records += put_to(log, S0, 2)
    assert bench.next().numbers == numbers_of(records[-2:])


def test_the_first_page_is_small_and_the_next_one_waits() -> None:
    """Until its answer has reached the planner, planner and tasks read the shard."""
    log = new_log()
    put_to(log, S0, 10)
    bench = Bench(log)
    bench.next()
    bench.next()

    assert log.limits == [1, 1_900]
    assert bench.pages.read_at == [0.0, 1.0]


def test_pages_that_say_nothing_new_are_handed_out_now_and_then() -> None:
    """The planner has to know that the shard is read, but not four times a second."""
    log = new_log()
    bench = Bench(log)
    first = bench.next()
    began = log.monotonic()

    assert (first.numbers, first.millis_behind) == ([], 0)
    assert bench.next().numbers == []
    assert 2.0 <= log.monotonic() - began < 2.5
    assert bench.poller.asked_at >= log.now - SECOND


def test_a_page_tells_what_held_when_it_was_asked_for() -> None:
    """Records may have come while the answer was in flight."""
    log = new_log()
    bench = Bench(log)
    bench.next()
    bench.pages.takes = 5.0

    assert bench.next().millis_behind == 0
    assert log.now - 5.2 * SECOND < bench.poller.asked_at <= log.now - 5.0 * SECOND


def test_that_the_tip_is_reached_is_news() -> None:
    """A page may have the last record and say that others follow; the next one says that none does."""
    log = new_log()
    bench = Bench(log)
    bench.next()
    (record,) = put_to(log, S0, 1)
    bench.pages.behind = 100
    assert bench.next().millis_behind == 100
    bench.pages.behind = None
    began = log.monotonic()

    assert (bench.next().millis_behind, record.sequence_number) == (0, record.sequence_number)
    assert log.monotonic() - began < 0.3


def test_a_full_page_is_not_the_tip() -> None:
    """Others may follow, even if it says that it is at the tip."""
    log = new_log()
    put_to(log, S0, 3)
    bench = Bench(log, page_limit=2)
    bench.pages.behind = 0

    heads = [bench.next() for _ in range(3)]

    assert [(len(head.numbers), head.millis_behind) for head in heads] == [(1, 1), (2, 1), (0, 0)]


def test_an_expired_iterator_is_opened_anew_behind_the_last_record() -> None:
    """The last record comes again, and is not among the new ones."""
    log = new_log()
    records = put_to(log, S0, 3)
    bench = Bench(log)
    bench.until_idle()
    records += put_to(log, S0, 2)
    log.expire_iterators()

    payload, head = bench.poller.next_event()

    assert (head.numbers, head.skipped) == (numbers_of(records[3:]), 1)
    assert payload == b"-".join(number.encode() for number in numbers_of(records[2:]))


def test_records_that_expired_are_not_passed_over() -> None:
    """If the last record is missing, later ones may be, too: polling decides whether they are lost."""
    log = new_log()
    put_to(log, S0, 3)
    bench = Bench(log)
    bench.until_idle()
    put_to(log, S0, 5)
    log.trim(S0, 5)
    log.expire_iterators()

    with pytest.raises(ServiceError) as raised:
        bench.next()
    assert raised.value.code == INTEGRITY_PROBLEM


def test_a_throttled_shard_is_read_more_rarely_and_continues() -> None:
    """It is no error: others read the shard, too."""
    log = new_log()
    bench = Bench(log)
    bench.next()
    records = put_to(log, S0, 1)
    refusals = iter([THROTTLED] * 3)
    log.fault = lambda operation, _: next(refusals, None) if operation == "GetRecords" else None
    before = len(bench.pages.read_at)

    assert bench.next().numbers == numbers_of(records)
    gaps = [end - begin for begin, end in pairwise(bench.pages.read_at[before:])]
    assert gaps == pytest.approx([0.5, 1.0, 2.0])
    assert bench.space.asked.count("back") >= 3
    assert bench.figures.splits() == {S0: SplitFigures(refused=3, retries=3)}


def test_a_read_that_fails_is_repeated_as_often_as_the_options_say() -> None:
    """Then planner and tasks read the shard, and fail or wait as they do without an agent."""
    log = new_log()
    bench = Bench(log)
    failures = iter([BROKEN] * 3)
    log.fault = lambda operation, _: next(failures, None) if operation == "GetRecords" else None
    assert bench.next().millis_behind == 0

    log.fault = lambda operation, _: BROKEN if operation == "GetRecords" else None
    with pytest.raises(ServiceError, match="500 from s"):
        bench.next()
    assert len(bench.pages.read_at) == 4 + 4
    assert bench.figures.splits() == {S0: SplitFigures(retries=3 + 3)}


def test_a_shard_far_behind_its_tip_is_left_to_tasks_at_once() -> None:
    """One record is read, and none is buffered."""
    log = new_log()
    put_to(log, S0, 1_000)
    log.pass_time(60)
    bench = Bench(log, page_limit=10)
    bench.pages.behind = 60_000

    with pytest.raises(ServiceError) as raised:
        bench.next()
    assert raised.value.code == FAR_BEHIND
    assert log.limits == [1]


def test_a_shard_that_falls_behind_is_left_to_tasks_when_batches_have_taken_its_pages() -> None:
    """What is buffered is not read again: the poller only reads no more."""
    log = new_log()
    bench = Bench(log)
    bench.next()
    records = put_to(log, S0, 5)
    bench.pages.behind = 10_001
    assert bench.next().numbers == numbers_of(records)
    reads = len(bench.pages.read_at)

    with pytest.raises(ServiceError) as raised:
        bench.next()
    assert raised.value.code == FAR_BEHIND
    assert bench.space.asked[-1] == "drained"
    assert len(bench.pages.read_at) == reads


def test_there_is_space_before_a_page_is_read() -> None:
    """As much as the last page took, twice; what it does not need is given back."""
    log = new_log()
    bench = Bench(log)
    bench.next()
    assert bench.space.asked == [64 * 1024, "back"]
    bench.space.asked.clear()
    put_to(log, S0, 1_500)
    _, head = bench.poller.next_event()
    size = 31 * len(head.numbers) - 1
    put_to(log, S0, 1_200)
    bench.next()

    assert size > 40_000
    assert bench.space.asked[:3] == [64 * 1024, ("fit", size), 2 * size]


def test_a_full_buffer_stops_the_reads_and_close_ends_the_wait() -> None:
    """The thread of the poller waits until a batch has passed a page."""
    log = new_log()
    put_to(log, S0, 1)
    buffer = ShardBuffer(HORIZON, BufferBudget(100_000))
    other = ShardBuffer(HORIZON, (budget := buffer._budget))
    other.make_space(80_000)
    assert budget.held > 80_000
    pages: Any = Pages(log)
    poller = Poller(
        pages, S0, HORIZON, buffer, SETTINGS, timing=Timing(log.monotonic, log.sleep, lambda: 0.0)
    )
    outcomes: list[Any] = []

    def read() -> None:
        try:
            outcomes.append(poller.next_event())
        except ServiceError as error:
            outcomes.append(error.code)

    thread = threading.Thread(target=read)
    thread.start()
    while not budget._queue:
        assert thread.is_alive()
    assert log.calls["GetRecords"] == 0
    poller.close()
    buffer.close("the test ends")
    thread.join(PATIENT)

    assert outcomes == ["PollerClosed"]
    assert log.calls["GetRecords"] == 0


# --- answers of the service ---------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[Callable[..., tuple[KinesisLog, Transport]]]:
    """A log as an agent has it, over a transport with these answers."""

    def make(*answers: Answer, wire_format: str = "auto") -> tuple[KinesisLog, Transport]:
        config = source_config_from_options({"streamName": "s", "wireFormat": wire_format, **OPTIONS})
        left = list(answers)
        transport = Transport(lambda *_: left.pop(0))
        transport.install(client_for(replace(config.connection, keeps_pages=True), "kinesis"))
        return page_log(config), transport

    yield make
    forget_process_state()


RECORDS = [
    {"SequenceNumber": str(n), "ApproximateArrivalTimestamp": 5.5, "PartitionKey": "k", "Data": "ZGF0YQ=="}
    for n in (11, 12)
]
BODY = json.dumps({"Records": RECORDS, "NextShardIterator": "next", "MillisBehindLatest": 3}).encode()


@pytest.mark.parametrize("wire_format", ["auto", "cbor"])
def test_a_page_is_passed_on_as_it_came(
    served: Callable[..., tuple[KinesisLog, Transport]], wire_format: str
) -> None:
    """Its body is what a task decodes; the agent reads heads alone."""
    log, transport = served(answer(BODY), wire_format=wire_format)

    page = log.get_records(S0, "it", 1_900)

    assert isinstance(page, EncodedPage)
    assert [(each.sequence_number, each.arrival) for each in page.records] == [
        ("11", 5_500_000),
        ("12", 5_500_000),
    ]
    assert (page.next_iterator, page.millis_behind, page.count) == ("next", 3, 2)
    assert [each.data for each in decode_page(page.body).records] == [b"data", b"data"]
    assert (page.body == BODY) == (wire_format == "auto")
    assert transport.calls == [("GetRecords", {"ShardIterator": "it", "Limit": 1_900})]


@pytest.mark.parametrize(
    ("given", "attribute"),
    [
        (refusal("ProvisionedThroughputExceededException"), "throttling"),
        (refusal("ExpiredIteratorException"), "expired_iterator"),
        (answer(BODY[:-20]), "retryable"),
        (answer(b'{"Records": null}'), "retryable"),
    ],
)
def test_an_answer_that_is_no_page_is_not_asked_for_again_here(
    served: Callable[..., tuple[KinesisLog, Transport]], given: Answer, attribute: str
) -> None:
    """The poller decides when to read again."""
    log, transport = served(given)

    with pytest.raises(ServiceError) as raised:
        log.get_records(S0, "it", 1_900)

    assert getattr(raised.value, attribute)
    assert len(transport.calls) == 1


# --- the pace ---------------------------------------------------------------------------------------------


def reads_of(
    pace: PollingPace,
    seconds: float,
    *,
    refused: int = 0,
    cost: float = 0.0,
) -> list[float]:
    """When a shard is read that answers at once, after so many refusals."""
    times: list[float] = []
    now = 0.0
    while now + pace.wait(now) < seconds:
        now += pace.wait(now)
        if len(times) < refused:
            pace.record_refusal(now)
        else:
            pace.record_page(now, cost)
        times.append(now)
    return times


@pytest.mark.parametrize(
    ("interval", "shards", "cost", "reads"),
    [
        pytest.param(0.2, 1, 0.0, 80, id="one of five reads a second is left to others"),
        pytest.param(0.5, 1, 0.0, 40, id="getRecordsInterval holds for the agent, too"),
        pytest.param(0.2, 1, 5.0, 4, id="a large page is paid for before the next read"),
        pytest.param(0.2, 100, 0.0, 40, id="many shards share what one agent can read"),
    ],
)
def test_how_often_a_shard_is_read(interval: float, shards: int, cost: float, reads: int) -> None:
    assert len(reads_of(PollingPace(interval, lambda: shards, lambda: 0.0), 20, cost=cost)) == reads


def test_refusals_double_the_pause_and_an_answer_sets_it_back() -> None:
    times = reads_of(PollingPace(0.2, lambda: 1, lambda: 0.0), 12, refused=6)
    assert [end - begin for begin, end in pairwise(times)][:7] == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 0.25]
