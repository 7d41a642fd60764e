"""The coordinator: what becomes of consumers that a query registered, and where its tasks read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sluice import letterboxes
from sluice.channels.channel import SPARK_DRIVER, Address
from sluice.errors import OptionError, ServiceError
from sluice.kinesis.consumers import ownership
from sluice.kinesis.consumers.ownership import QueryConsumers
from sluice.kinesis.options.config import SourceConfig, source_config_from_options
from sluice.kinesis.planner import agent_coordinator, fan_out_coordinator
from sluice.kinesis.planner import coordinator as planner
from sluice.kinesis.planner.agent_process import StopSignals, is_alive
from sluice.kinesis.planner.coordinator import SourceCoordinator
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.shared.launch import AgentPlace
from sluice.kinesis.shared.protocol import CallsCounted
from sluice.kinesis.source import KinesisSource
from sluice.letterboxes import Letterbox
from sluice.source.model.offsets import HORIZON, Closed, Offsets, SplitRange
from sluice.source.model.read_figures import ReadFigures
from sluice.source.model.splits import SplitId
from sluice.source.reports.task_reports import send_report
from sluice.spark.source import KinesisDataSource
from sluice.spark.source_reader import make_stream_reader
from sluice.spark_settings import SparkSettings

STREAM_ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/clicks"
ARN, OTHER_ARN = f"{STREAM_ARN}/consumer/app:1", f"{STREAM_ARN}/consumer/app:2"
SPLIT = SplitId("clicks", "shardId-000000000000")
RANGES = [SplitRange(SPLIT, HORIZON, Closed())]
AGENT = Address("127.0.0.1", 7, b"secret", b"start")


class FakeAgentClient:
    """Keeps its calls, in order."""

    hub = AGENT
    hosts = frozenset({"127.0.0.1"})
    recoveries = 0

    def __init__(self, setup: object, consumers: QueryConsumers | None = None, **_: object) -> None:
        del consumers
        self.setup = setup
        self.calls: list[Any] = []

    def start(self) -> None:
        self.calls.append("start")

    def wait_for_agent(self, seconds: float) -> None:
        self.calls.append(f"wait {seconds:g} s")

    def agents(self, splits: Sequence[SplitId]) -> dict[SplitId, Address]:
        return dict.fromkeys(splits, AGENT)

    def figures(self) -> dict[str, Any]:
        return {"state": "listening"}

    def tell_stop(self) -> None:
        self.calls.append("tell stop")

    def close(self) -> None:
        self.calls.append("close")


class FakeRegistrar:
    """Has consumers ready."""

    registers = True
    gone: ClassVar[list[str]] = []

    def __init__(self, config: object, *, on_registered: Callable[[str, str], None], **_: object) -> None:
        del config
        self._on_registered = on_registered

    def ensure(self, stream: str) -> str:
        if self.registers:
            self._on_registered(stream, ARN)
        return ARN

    def deregister(self, arn: str) -> None:
        self.gone.append(arn)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRegistrar, "registers", True)
    monkeypatch.setattr(FakeRegistrar, "gone", [])
    monkeypatch.setattr(fan_out_coordinator, "AgentClient", FakeAgentClient)
    monkeypatch.setattr(ownership, "ConsumerRegistrar", FakeRegistrar)
    monkeypatch.setattr(StopSignals, "handle", lambda *_: None)


def config(options: Mapping[str, str] | None = None) -> SourceConfig:
    base = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app"}
    return source_config_from_options(base | dict(options or {}))


def consumers_of(coordinator: SourceCoordinator) -> QueryConsumers:
    consumers: QueryConsumers = coordinator._consumers  # type: ignore[attr-defined]
    return consumers


def agent_calls(coordinator: SourceCoordinator) -> list[Any]:
    calls: list[Any] = coordinator._agent.calls  # type: ignore[attr-defined]
    return calls


# --- consumers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_disconnected", "driver_lives", "first"),
    [(True, True, "tell stop"), (True, False, "close"), (False, True, "close")],
)
def test_a_driver_that_disconnects_and_lives_has_stopped_the_query(
    monkeypatch: pytest.MonkeyPatch, *, is_disconnected: bool, driver_lives: bool, first: str
) -> None:
    """Its signal may be late. The agent has to know of the stop before its link closes."""
    monkeypatch.setattr(fan_out_coordinator, "is_alive", lambda _driver: driver_lives)
    coordinator = KinesisSource(config()).create_coordinator()
    calls = agent_calls(coordinator)
    calls.clear()

    coordinator.close(is_disconnected=is_disconnected)

    assert calls[0] == first
    assert set(calls[1:]) <= {"close"}


@pytest.mark.parametrize(
    ("logged", "registered"),
    [
        ({}, {}),
        ({"clicks": ARN}, {"clicks": ARN}),
        ({"clicks": OTHER_ARN}, {}),
        ({"gone": ARN}, {}),
    ],
)
def test_a_consumer_registered_earlier_is_known_by_its_arn(
    monkeypatch: pytest.MonkeyPatch, logged: Mapping[str, str], registered: Mapping[str, str]
) -> None:
    """By an earlier run. Another ARN is that of a consumer somebody else has registered."""
    monkeypatch.setattr(FakeRegistrar, "registers", False)
    coordinator = KinesisSource(config()).create_coordinator()

    coordinator.restore(Offsets({}, consumers=logged))

    assert coordinator.enumerator.own_consumers() == registered
    assert consumers_of(coordinator).going == frozenset(registered.values())
    coordinator.close()


def test_a_consumer_that_the_user_gives_is_never_the_querys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though an earlier run has registered it."""
    monkeypatch.setattr(FakeRegistrar, "registers", False)
    options = {"consumerArn": ARN, "streamName": "clicks", "region": "us-east-1"}
    coordinator = KinesisSource(source_config_from_options(options)).create_coordinator()
    coordinator.restore(Offsets({}, consumers={"clicks": ARN}))
    coordinator.close()

    assert coordinator.enumerator.own_consumers() == {}


def test_a_consumer_is_logged_when_tasks_get_a_batch_that_names_it() -> None:
    """Spark passes the start of a first batch, which it does not log, before that."""
    coordinator = KinesisSource(config()).create_coordinator()
    coordinator.restore(Offsets({}, consumers={"clicks": ARN}))
    before = consumers_of(coordinator).logged
    coordinator.assign(RANGES)
    coordinator.close()

    assert (before, consumers_of(coordinator).logged) == (frozenset(), frozenset({ARN}))


def test_a_consumer_that_a_task_saw_taken_over_stays_for_this_run(caplog: pytest.LogCaptureFixture) -> None:
    """Another reader, or the task's own second attempt; nobody can distinguish them. The offset log still
    names the consumer, so that a later run deregisters it.
    """
    coordinator = KinesisSource(config({"agent": "none"})).create_coordinator()
    coordinator._figures.mark_contested([ARN])
    for _ in range(2):
        coordinator.post_report()
    coordinator.close()

    assert consumers_of(coordinator).going == frozenset()
    assert coordinator.enumerator.own_consumers() == {"clicks": ARN}
    assert caplog.text.count(f"another reader uses consumer {ARN}, so this run does not deregister it") == 1


def test_without_an_agent_a_consumer_that_is_gone_is_registered_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No agent notices it. Meanwhile batches continue, even if it can't be registered; it is checked once in
    10 s.
    """
    times = iter([100.0, 101.0, 109.0, 110.0, 120.0])
    coordinator = KinesisSource(config({"agent": "none"})).create_coordinator()
    monkeypatch.setattr(coordinator, "_clock", lambda: next(times))
    looks: list[str] = []

    def look(_self: FakeRegistrar, stream: str) -> str:
        looks.append(stream)
        if len(looks) == 2:
            raise ServiceError("too many consumers")
        return OTHER_ARN

    monkeypatch.setattr(FakeRegistrar, "ensure", look)
    found = []
    for _ in range(5):
        assigned = coordinator.assign(RANGES)
        assert assigned is not None
        found.append(assigned.arns)
        if (thread := coordinator._looking) is not None:  # type: ignore[attr-defined]
            thread.join()
    coordinator.close()

    assert looks == ["clicks"] * 3
    assert found == [{"clicks": ARN}, *[{"clicks": OTHER_ARN}] * 4]
    assert coordinator.enumerator.own_consumers() == {}
    assert "clicks: the consumer is gone or going, and can't be registered" in caplog.text


@pytest.mark.parametrize("registers", [True, False])
def test_a_batch_read_warns_of_a_consumer_that_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, registers: bool
) -> None:
    """A consumer that it has registered: Spark does not say when the last task has read."""
    monkeypatch.setattr(FakeRegistrar, "registers", registers)
    monkeypatch.setattr(planner, "plan_bounded_read", lambda _source: [])

    assignment = KinesisSource(config()).plan_bounded()[1]

    assert assignment == FanOutAssignment({"clicks": ARN}, is_streaming=False)
    assert ("stays registered" in caplog.text) == registers


@pytest.mark.parametrize("registration_", ["lazy", "eager"])
def test_a_plan_that_is_only_analysed_registers_nothing(
    monkeypatch: pytest.MonkeyPatch, registration_: str
) -> None:
    """Spark asks for the schema at `load()`, and again for `explain()`, also after the query was stopped."""
    monkeypatch.setattr(FakeRegistrar, "ensure", lambda *_: pytest.fail("registered"))
    options = {"streamName": "clicks", "consumerName": "app", "consumerRegistration": registration_}
    found: Any = KinesisDataSource(options)
    found.schema()
    assert make_stream_reader(found._source(streaming=True)) is not None


def test_the_death_of_the_driver_is_noticed() -> None:
    """A moment after a driver has closed its connections, its children get another parent."""
    parents = iter([7, 7, 1])
    slept: list[float] = []

    assert not is_alive(7, getppid=lambda: next(parents), sleep=slept.append)
    assert len(slept) == 2
    assert is_alive(7, getppid=lambda: 7, sleep=slept.append)
    assert sum(slept) == pytest.approx(2.1)


@pytest.mark.parametrize(
    ("registers", "options", "taken", "gone"),
    [
        (False, {}, "", []),
        (True, {"consumerDeregistration": "never"}, "", []),
        (True, {}, ARN, []),
        (True, {}, "", [ARN]),
    ],
)
def test_a_consumer_that_no_task_reaches_is_deregistered_if_it_is_the_querys(
    monkeypatch: pytest.MonkeyPatch, registers: bool, options: dict[str, str], taken: str, gone: list[str]
) -> None:
    """Unless it belongs to somebody else, somebody else uses it, or ``consumerDeregistration`` forbids it."""
    monkeypatch.setattr(FakeRegistrar, "registers", registers)
    coordinator = KinesisSource(config(options)).create_coordinator()
    consumers_of(coordinator).contest("clicks", taken)
    consumers_of(coordinator).release()
    coordinator.close()

    assert FakeRegistrar.gone == gone
    assert not (gone and consumers_of(coordinator).own)


def test_the_agent_is_placed_by_the_options_and_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a loopback address would be of no use on a cluster."""
    spark = SparkSettings("spark://10.0.0.1:7077", "driver.example", "10.0.0.1")
    monkeypatch.setattr(fan_out_coordinator, "find_spark_settings", lambda: spark)
    coordinator = KinesisSource(config()).create_coordinator()

    setup = coordinator._agent.setup  # type: ignore[attr-defined]
    assert setup.place == AgentPlace(SPARK_DRIVER, "10.0.0.1")
    with pytest.raises(OptionError, match="agentAddress"):
        KinesisSource(config({"agentAddress": "localhost"})).create_coordinator()
    coordinator.close()


# --- where tasks read from ----------------------------------------------------------------------------


def test_tasks_of_a_polling_query_get_no_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a stream nor for a batch read."""
    monkeypatch.setattr(planner, "plan_bounded_read", lambda _source: [])
    polling = source_config_from_options({"streamName": "clicks", "region": "us-east-1"})
    coordinator = KinesisSource(polling).create_coordinator()

    coordinator.restore(Offsets({}, consumers={"clicks": ARN}))
    assert coordinator.assign(RANGES) is None
    assert KinesisSource(polling).plan_bounded()[1] is None
    coordinator.close()


@pytest.mark.parametrize(
    ("options", "expected", "waits"),
    [
        ({}, FanOutAssignment({"clicks": ARN}, {SPLIT: AGENT}, AGENT, FakeAgentClient.hosts), False),
        (
            {"subscribeToShardFallback": "fail"},
            FanOutAssignment({"clicks": ARN}, {SPLIT: AGENT}, AGENT, FakeAgentClient.hosts),
            True,
        ),
        ({"agent": "none"}, FanOutAssignment({"clicks": ARN}), False),
    ],
)
def test_tasks_get_consumers_and_agents(
    options: dict[str, str], expected: FanOutAssignment, *, waits: bool
) -> None:
    """Without an agent only consumers. Tasks that may not poll wait for the agent."""
    coordinator = KinesisSource(config(options)).create_coordinator()

    assert coordinator.assign(RANGES) == expected
    assert ("wait 45 s" in agent_calls(coordinator)) == waits
    coordinator.close()


# --- figures ------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_planner_and_of_tasks() -> None:
    """By shard; of the last batch, those of tasks that have read everything."""
    coordinator = KinesisSource(config()).create_coordinator()
    address = coordinator.begin_batch(2)
    assert address is not None
    read = ReadFigures()
    read.count_page(SPLIT, 5, 500, is_pushed=True)
    send_report(address.found_at("127.0.0.1"), read, is_complete=True, query="q", run="r")
    coordinator._figures.count_call(SPLIT, refused=3, retries=4)
    figures = coordinator.figures()
    coordinator.close()

    assert (figures["tasks"], figures["reportedTasks"], figures["agent"]) == (2, 1, {"state": "listening"})
    assert figures["streams"] == {
        "clicks": {
            SPLIT.shard: {
                "publisher": "polling",
                "polled": 0,
                "pushed": 5,
                "bytes": 500,
                "refused": 3,
                "retries": 4,
                "batchRecords": 5,
                "batchBytes": 500,
            }
        }
    }


def test_listeners_get_a_report_once_in_two_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As soon as a task has told which query it is; Spark does not tell the planning process."""
    monkeypatch.setattr(letterboxes, "_directory", lambda: tmp_path / "boxes")
    now = 100.0
    monkeypatch.setattr("sluice.kinesis.planner.coordinator.time.monotonic", lambda: now)
    box = Letterbox()
    coordinator = KinesisSource(config()).create_coordinator()
    coordinator.post_report()
    before = box.take()
    address = coordinator.begin_batch(1)
    assert address is not None
    send_report(address.found_at("127.0.0.1"), ReadFigures(), is_complete=True, query="q", run="r")
    counts = []
    for now in (101.0, 102.0, 103.0, 104.0, 105.0):  # noqa: B007 - the clock
        coordinator.post_report()
        counts.append(len(letters := box.take()))
        known = letters or [{}]
        if letters:
            assert (known[0]["kind"], known[0]["query_id"], known[0]["run_id"]) == ("source", "q", "r")
            assert known[0]["streams"] == ["clicks"]
            assert known[0]["figures"]["tasks"] == 1
    coordinator.close()
    box.close()

    assert before == []
    assert counts == [0, 1, 0, 1, 0]


# --- an agent that polls ------------------------------------------------------------------------------

POLLED = {"streamName": "clicks", "region": "us-east-1", "agent": "driver"}


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> SourceCoordinator:
    """The coordinator of a query whose shards an agent polls."""
    monkeypatch.setattr(agent_coordinator, "AgentClient", FakeAgentClient)
    return KinesisSource(source_config_from_options(POLLED)).create_coordinator()


def test_tasks_get_the_agent_that_polls(polled: SourceCoordinator) -> None:
    """And no consumer, as there is none. The agent is not started before it is needed."""
    assert polled.assign(RANGES) == FanOutAssignment({}, {SPLIT: AGENT}, AGENT, FakeAgentClient.hosts)
    assert agent_calls(polled) == []
    polled.close()
    assert agent_calls(polled) == ["close"]


def test_what_an_agent_polls_is_polled(polled: SourceCoordinator) -> None:
    """In the figures: a query that polls has no record of fan-out, and its agent is shown."""
    address = polled.begin_batch(1)
    assert address is not None
    read = ReadFigures()
    read.count_page(SPLIT, 5, 500, is_pushed=True)
    read.count_page(SPLIT, 2, 200, is_pushed=False)
    send_report(address.found_at("127.0.0.1"), read, is_complete=True, query="q", run="r")
    polled.enumerator._splits.states[SPLIT] = SimpleNamespace(is_pushed=True)
    figures = polled.figures()
    shard = figures["streams"]["clicks"][SPLIT.shard]
    polled.close()

    assert (shard["publisher"], shard["polled"], shard["pushed"]) == ("polling", 7, 0)
    assert figures["agent"] == {"state": "listening"}


def test_figures_of_shards_that_are_not_read_any_more_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is resharded has new ones each time. Those of the shards that are read stay."""
    monkeypatch.setattr(planner, "_FEWEST_SPLITS", 20)
    coordinator = KinesisSource(config()).create_coordinator()
    for day in range(90):
        for split in (SPLIT, *(SplitId("clicks", f"{day}-{n}") for n in range(4))):
            coordinator._figures.count_page(split, 1, 100, is_pushed=False)
        figures = coordinator.figures()
    coordinator.close()
    assert len(coordinator._figures.splits()) == 20
    shards = figures["streams"]["clicks"]
    assert len(shards) == 20
    assert shards[SPLIT.shard]["bytes"] == 90 * 100
    assert "89-3" in shards


def test_reads_that_an_agent_was_refused_are_in_the_figures() -> None:
    """In addition to those of planner and tasks, by shard."""
    coordinator = KinesisSource(source_config_from_options(POLLED)).create_coordinator()
    coordinator._figures.count_call(SPLIT, refused=1, retries=1)
    for refused, retries in ((2, 3), (0, 4)):
        counted = CallsCounted(SPLIT, refused, retries)
        coordinator._agent._handle_message(counted)  # type: ignore[attr-defined]
    shard = coordinator.figures()["streams"]["clicks"][SPLIT.shard]
    coordinator.close()

    assert (shard["refused"], shard["retries"]) == (3, 8)


def test_a_run_of_what_is_available_does_without(polled: SourceCoordinator) -> None:
    polled.stop_at_available()

    near_tip = polled._near_tip  # type: ignore[attr-defined]
    near_tip.follow({SPLIT: HORIZON})
    assert near_tip._is_off
    assert polled.enumerator._splits.wants_targets
    assert agent_calls(polled) == []
    polled.close()
