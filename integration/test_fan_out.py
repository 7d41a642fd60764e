"""Fan-out through Spark: consumers that come and go with a query, faults that change nothing, no polling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.support.fan_out import (
    agents,
    consumers,
    counting,
    is_alive,
    kill,
    parent_of,
    register,
    wait_for_agent,
    wait_for_no_agents,
    wait_until_pushed,
)
from integration.support.kinesis import Streams
from integration.support.producer import Producer, check_exact
from integration.support.queries import logged_offsets, read, read_stream, start, wait_until
from integration.support.recorder import Recorder
from integration.support.servers import FaultProxy, Server, fault_proxy
from integration.support.spark import stop_queries

NAME = "reader"
TASKS_ONLY = {"getRecordsLimit": "77"}
"""Tasks that poll ask for pages of this size; planning never does."""
POLL_OF_A_TASK = {**counting("GetRecords"), "body": "Limit == `77`"}


@pytest.fixture(scope="module")
def proxy(ministack: Server) -> Iterator[FaultProxy]:
    with fault_proxy(ministack.endpoint) as proxy:
        yield proxy


@pytest.fixture
def faults(proxy: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy, the same for all tests: workers know its endpoint from one on. No rules yet."""
    proxy.clear()
    yield proxy
    proxy.clear()


@pytest.fixture(autouse=True)
def _no_agent_is_left(spark: SparkSession) -> Iterator[None]:
    """Every agent ends with its query, however that ended."""
    wait_for_no_agents()  # of tests before, which may take some seconds to deregister their consumers
    yield
    stop_queries(spark)
    wait_for_no_agents()


@dataclass
class Case:
    """A stream of two shards with 100 records in it, and a query on it with a consumer."""

    spark: SparkSession
    streams: Streams
    stream: str
    producer: Producer
    recorder: Recorder

    def source(self, endpoint: str | None = None, **options: str) -> DataFrame:
        """Args: endpoint: the server's own where it is not given."""
        options = {"consumerName": NAME, **options}
        return read_stream(self.spark, endpoint or self.streams.endpoint, self.stream, **options)

    def start(self, endpoint: str | None = None, **options: str) -> StreamingQuery:
        return self.recorder.start(self.source(endpoint, **options))

    def read_all(self, query: StreamingQuery) -> None:
        """Returns when the query has given as many rows as have been put."""
        self.recorder.wait_for(query, self.producer.count)

    def stop(self, query: StreamingQuery) -> None:
        """Returns when its agent has ended too."""
        query.stop()
        wait_for_no_agents()

    def check_exact(self) -> None:
        check_exact(self.recorder, self.producer)

    def consumers(self) -> list[str]:
        return consumers(self.streams, self.stream)

    def shards(self) -> list[str]:
        """As messages name them."""
        return [f"{self.stream}/{shard}" for shard in self.streams.open_shards(self.stream)]


@pytest.fixture
def case(spark: SparkSession, streams: Streams, checkpoint: str) -> Case:
    stream = streams.create(2)
    producer = Producer(streams, stream)
    producer.put(100)
    return Case(spark, streams, stream, producer, Recorder(checkpoint))


# --- consumers ----------------------------------------------------------------------------------------


def test_a_lazy_consumer_lives_as_long_as_its_query(case: Case) -> None:
    """It is registered when the query starts, not before, and is deregistered after the stop; the agent ends,
    too. The offset log says whose it is.
    """
    frame = case.source()
    assert case.consumers() == []
    query = case.recorder.start(frame)
    case.read_all(query)
    (arn,) = case.consumers()
    assert f"/consumer/{NAME}:" in arn
    assert [wait_for_agent()] == agents()

    case.stop(query)

    assert case.consumers() == []
    assert logged_offsets(case.recorder.checkpoint)[0]["consumers"] == {case.stream: arn}
    case.check_exact()


def test_a_plan_that_is_only_analysed_registers_no_consumer(case: Case) -> None:
    """Neither before the query starts nor after it was stopped; also with ``eager``."""
    frame = case.source(consumerRegistration="eager")
    frame.explain()
    assert case.consumers() == []
    query = case.recorder.start(frame)
    case.read_all(query)
    assert len(case.consumers()) == 1

    case.stop(query)
    frame.explain()

    assert case.consumers() == []
    case.check_exact()


def test_a_consumer_that_is_never_deregistered(case: Case) -> None:
    """``never`` leaves it for the next run, which finds it and leaves it too."""
    for _ in range(2):
        case.producer.put(50)
        query = case.start(consumerDeregistration="never")
        case.read_all(query)
        case.stop(query)
        assert len(case.consumers()) == 1

    case.check_exact()


def test_a_consumer_by_its_arn(case: Case, faults: FaultProxy) -> None:
    """``none``: the user's consumer is read with, none is registered, and it stays."""
    arn = register(case.streams, case.stream, "of-the-user")
    operations = ("SubscribeToShard", "RegisterStreamConsumer")
    faults.set_rules(*map(counting, operations))
    subscribed, registered = map(faults.count, operations)
    options = {"consumerRegistration": "none", "consumerArn": arn}

    query = case.recorder.start(read_stream(case.spark, faults.endpoint, case.stream, **options))
    case.read_all(query)
    wait_until(lambda: faults.count("SubscribeToShard") >= subscribed + 2, "both shards to be subscribed to")
    case.stop(query)

    assert case.consumers() == [arn]
    assert faults.count("RegisterStreamConsumer") == registered
    case.check_exact()


def test_a_failure_leaves_the_consumer_to_the_next_run(case: Case) -> None:
    """SIGKILL of the process that plans is a failure, not a stop: the consumer stays, the next run reads
    with it, and deregisters it at its stop, since the offset log says that it is the query's own.
    """
    query = case.start()
    case.read_all(query)
    before = case.consumers()
    agent = wait_for_agent()
    kill(parent_of(agent))
    wait_until(lambda: not query.isActive, "the query to fail")
    assert query.exception() is not None
    wait_until(lambda: not is_alive(agent), "the agent to end by itself")
    assert case.consumers() == before

    again = case.start()
    case.producer.put(50)
    case.read_all(again)
    assert case.consumers() == before
    case.stop(again)

    assert case.consumers() == []
    case.check_exact()


def test_two_queries_with_one_consumer(case: Case, driver_log: Path, tmp_path: Path) -> None:
    """The service lets one of them have a shard; both read every record once all the same."""
    other = replace(case, recorder=Recorder(str(tmp_path / "other")))
    with case.producer.putting():
        query = case.start()
        case.read_all(query)
        (arn,) = case.consumers()
        other_query = other.start()
        wait_until(lambda: "not subscribed; polling" in driver_log.read_text(), "one to lose a shard")
        case.read_all(query)
        other.read_all(other_query)
        other_query.stop()
        wait_until(lambda: len(agents()) == 1, "the agent of the query that was stopped to end")
        assert case.consumers() == [arn]
    case.read_all(query)
    case.stop(query)

    assert case.consumers() == [arn]
    other.recorder.run_available(read_stream(case.spark, case.streams.endpoint, case.stream))
    case.check_exact()
    other.check_exact()


# --- other ways to read -------------------------------------------------------------------------------


def test_a_batch_read_gives_the_same_rows(case: Case, faults: FaultProxy) -> None:
    """``recordPublisher`` ``efo`` reads a batch by subscriptions, with the rows that polling gives."""
    case.producer.put(900)
    polled = read(case.spark, case.streams.endpoint, case.stream).collect()
    faults.set_rules(POLL_OF_A_TASK, counting("SubscribeToShard"))
    polls, calls = faults.count("GetRecords"), faults.count("SubscribeToShard")
    options = {"recordPublisher": "efo", "consumerName": NAME, **TASKS_ONLY}

    pushed = read(case.spark, faults.endpoint, case.stream, **options).collect()

    assert sorted(map(tuple, pushed)) == sorted(map(tuple, polled))
    assert len(pushed) == case.producer.count
    assert (faults.count("GetRecords") - polls, faults.count("SubscribeToShard") - calls) == (0, 2)


def test_a_subscription_for_each_range(case: Case, faults: FaultProxy) -> None:
    """``agent`` ``none``: no agent process; the tasks subscribe themselves and never poll."""
    faults.set_rules(POLL_OF_A_TASK, counting("SubscribeToShard"))
    polls, calls = faults.count("GetRecords"), faults.count("SubscribeToShard")
    query = case.start(faults.endpoint, agent="none", consumerDeregistration="never", **TASKS_ONLY)
    case.read_all(query)
    assert agents() == []
    case.producer.put(50)
    case.read_all(query)
    query.stop()

    case.check_exact()
    assert len(case.recorder.batches) >= 2
    # A batch that begins while records are put may have those of one shard only, and so one range.
    ranges = {(row.batch, row.shard) for row in case.recorder.rows}
    assert faults.count("GetRecords") == polls
    assert faults.count("SubscribeToShard") >= calls + len(ranges)


def test_nothing_is_polled_while_records_are_pushed(case: Case, faults: FaultProxy) -> None:
    """A query in its stride calls ``GetRecords`` neither to plan a batch nor to read one, and subscribes to
    nothing anew.
    """
    operations = ("GetRecords", "GetShardIterator", "SubscribeToShard")
    faults.set_rules(*map(counting, operations))
    with case.producer.putting():
        query = case.start(faults.endpoint)
        wait_until_pushed(case.recorder, faults, batches=40, operations=operations)
    case.read_all(query)
    case.stop(query)

    case.check_exact()


# --- faults -------------------------------------------------------------------------------------------

DAMAGED = 4
"""The frame of a subscription at which something happens; the first one says nothing."""
BROKEN = {"code": "InternalFailureException", "after_frames": DAMAGED}

FAULTS: dict[str, dict[str, Any]] = {
    "throttled": {"error": {"code": "LimitExceededException"}, "times": 6},
    "in use": {"error": {"code": "ResourceInUseException"}},
    "broken service": {"error": {"code": "InternalFailure", "status": 500}, "times": 6},
    "reset": {"reset": True, "times": 6},
    "error event": {"response": {"event_error": BROKEN}},
    "cut frame": {"response": {"event_frames": [{"at": DAMAGED, "cut": 0.5}]}},
    "bad checksum": {"response": {"event_frames": [{"at": DAMAGED, "bad_crc": True}]}},
    "broken connection": {"response": {"abort_bytes": 20_000}},
}
QUICK = {"subscribeToShardBackoffBase": "50ms", "subscribeToShardBackoffMax": "200ms"}


def subscribe_rule(fault: Mapping[str, Any]) -> dict[str, Any]:
    return {"service": "kinesis", "operation": "SubscribeToShard", **fault}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass_change_nothing(case: Case, faults: FaultProxy, fault: str) -> None:
    """Subscriptions are refused, end with an error, in the middle of a frame, with a damaged frame: each
    record comes once, in order, and after it all records are pushed again.
    """
    faulty = subscribe_rule({"times": 2, **FAULTS[fault]})
    faults.set_rules(faulty, counting("GetRecords"))
    met = faults.count("SubscribeToShard") + int(faulty["times"])
    with case.producer.putting():
        query = case.start(faults.endpoint, **QUICK)
        # Not by `fired`, which forgets them for the polls of a slow machine.
        wait_until(lambda: faults.count("SubscribeToShard") == met, "the faults")
        wait_until_pushed(case.recorder, faults)
    case.read_all(query)
    case.stop(query)

    case.check_exact()


def test_a_subscription_that_another_reader_takes_is_polled(
    case: Case, faults: FaultProxy, driver_log: Path
) -> None:
    """The shard is read by polling, which the log says with its name and the reason; the query's own
    consumer is left to the other reader.
    """
    taken = {"code": "ResourceInUseException", "message": "taken over", "after_frames": DAMAGED}
    faults.set_rules(subscribe_rule({"response": {"event_error": taken}, "times": 1}))

    def warnings() -> list[str]:
        """On a slow machine there may be others, for other reasons."""
        lines = [line for line in driver_log.read_text().splitlines() if "not subscribed; polling" in line]
        return [line for line in lines if "ResourceInUseException" in line]

    with case.producer.putting():
        query = case.start(faults.endpoint)
        wait_until(warnings, "the warning")
        case.recorder.wait_for(query, case.producer.count + 100)
    case.read_all(query)
    case.stop(query)

    case.check_exact()
    (line,) = warnings()
    assert any(f"{shard}: " in line for shard in case.shards())
    assert len(case.consumers()) == 1


REFUSED = subscribe_rule({"error": {"code": "AccessDeniedException", "message": "no subscriptions for you"}})
SECRET = "a-key-that-nobody-may-see"  # noqa: S105 - emulators take anything


def test_what_fan_out_refuses_is_polled(case: Case, faults: FaultProxy, driver_log: Path) -> None:
    """By default a shard that can't be subscribed to is polled, with a warning that says which and why."""
    faults.set_rules(REFUSED)
    query = case.start(faults.endpoint, awsAccessKeyId="known", awsSecretAccessKey=SECRET)
    case.read_all(query)
    case.producer.put(50)
    case.read_all(query)
    for shard in case.shards():
        warning = f"{shard}: not subscribed; polling from "
        wait_until(lambda said=warning: said in driver_log.read_text(), "the warning")  # type: ignore[misc]
    command = Path(f"/proc/{wait_for_agent()}/cmdline").read_text()
    case.stop(query)

    case.check_exact()
    log = driver_log.read_text()
    assert "no subscriptions for you" in log
    assert SECRET not in log + command
    assert "secret=" not in log


def test_polling_may_be_forbidden(case: Case, faults: FaultProxy) -> None:
    """``subscribeToShardFallback`` ``fail``: the query fails, and says which shard, why, and what forbids
    polling. It continues when fan-out does, and no task polls.
    """
    faults.set_rules(REFUSED, POLL_OF_A_TASK)
    options = {"subscribeToShardFallback": "fail", **TASKS_ONLY}
    polls = faults.count("GetRecords")

    message = start(case.source(faults.endpoint, **options), case.recorder.checkpoint).error()

    assert "subscribeToShardFallback" in message or "SubscribeToShard" in message
    assert "no subscriptions for you" in message
    assert any(shard in message for shard in case.shards())
    wait_for_no_agents()

    faults.set_rules(POLL_OF_A_TASK)
    query = case.start(faults.endpoint, **options)
    case.read_all(query)
    case.stop(query)
    case.check_exact()
    assert faults.count("GetRecords") == polls
