"""The agent of a worker host: where it listens, and when a task starts one."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from dataclasses import replace

import pytest

from sluice.channels.channel import Address
from sluice.kinesis.options.agent import AgentConfig
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.shared.assignment import FanOutAssignment
from sluice.kinesis.shared.launch import AgentPlace, WorkerAgentSetup
from sluice.kinesis.task import agent_start
from sluice.kinesis.task.agent_start import AgentStarter, address_towards
from sluice.source.model.splits import SplitId

HUB = Address("10.0.0.1", 4000, b"s" * 32, b"start")
CONFIG = source_config_from_options(
    {"streamName": "clicks", "region": "us-east-1", "consumerName": "app", "agent": "workers"},
    streaming=True,
)
AGENT = AgentConfig(on_workers=True)


class FakeProcess(subprocess.Popen[bytes]):
    """A process that runs until the test ends it."""

    def __init__(self) -> None:
        self.pid = 4711
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def __del__(self, _warn: object = None) -> None:
        pass


class Host:
    """A worker host at 10.0.0.7: what its tasks start, and the clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.address: str | OSError = "10.0.0.7"
        self.started: list[WorkerAgentSetup] = []
        self.processes: list[FakeProcess] = []
        self.failure: OSError | None = None
        self.starter = AgentStarter(self._launch, self._find_address, lambda: self.now)

    def _find_address(self, host: str) -> str:
        assert host == HUB.host
        if isinstance(self.address, OSError):
            raise self.address
        return self.address

    def _launch(self, setup: WorkerAgentSetup) -> FakeProcess:
        if self.failure is not None:
            raise self.failure
        self.started.append(setup)
        self.processes.append(FakeProcess())
        return self.processes[-1]

    def run_task(self, *hosts: str, hub: Address | None = HUB) -> int:
        """A task begins; `hosts` have an agent. Returns how many agents have been started by now."""
        self.starter.start(CONFIG, AGENT, FanOutAssignment({}, {}, hub, frozenset(hosts)))
        return len(self.started)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own name does not resolve, as in many containers."""

    def fail(*_: object) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("gethostbyname", "gethostname", "getfqdn", "gethostbyname_ex"):
        monkeypatch.setattr(socket, name, fail)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)


@pytest.mark.usefixtures("_no_names")
@pytest.mark.parametrize("loopback", ["127.0.0.1", "::1"])
def test_a_host_is_known_by_its_address_on_the_way_to_the_hub(loopback: str) -> None:
    """With any name, and without sending anything."""
    try:
        socket.create_server(
            (loopback, 0), family=socket.AF_INET6 if ":" in loopback else socket.AF_INET
        ).close()
    except OSError:
        pytest.skip("this host has no IPv6")

    assert address_towards(loopback) == loopback


@pytest.mark.usefixtures("_no_names")
@pytest.mark.parametrize("given", ["a-name.invalid", "0.0.0.0", "203.0.113.9", "::1", ""])  # noqa: S104
def test_an_address_that_spark_was_given_may_be_of_no_use(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name, an unspecified address, an address of another host, or one of another family."""
    monkeypatch.setenv("SPARK_LOCAL_IP", given)

    assert address_towards("127.0.0.1") == "127.0.0.1"


@pytest.mark.usefixtures("_no_names")
def test_an_address_that_spark_was_given_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may have several addresses from which it reaches another one."""
    try:
        socket.create_server(("127.0.0.9", 0)).close()
    except OSError:
        pytest.skip("this host has one loopback address")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.9")

    assert address_towards("127.0.0.1") == "127.0.0.9"


@pytest.fixture
def _routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the driver is that of this host, which means 127.0.1.1, as Debian has it. Its address on
    its network is 10.0.0.7.
    """

    class Probe:
        def connect(self, place: tuple[str, int]) -> None:
            self.host = place[0]

        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1" if self.host.startswith("127.") else "10.0.0.7"), 0

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        address = "127.0.1.1" if host == "driver.example" else host
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "socket", lambda *_: contextlib.nullcontext(Probe()))


@pytest.mark.usefixtures("_no_names", "_routes")
def test_a_host_that_calls_itself_loopback_is_known_by_its_address_on_the_network() -> None:
    """It is the driver's host, where executors run too. Tasks on other hosts have to reach its agent."""
    assert address_towards("driver.example") == "10.0.0.7"
    assert address_towards("10.0.0.1") == "10.0.0.7"


@pytest.mark.usefixtures("_no_names", "_routes")
@pytest.mark.parametrize("driver", ["127.0.0.1", "127.0.0.5"])
def test_where_the_driver_is_at_a_loopback_address_all_hosts_are_one(driver: str) -> None:
    """Then there is no other host that could not use it."""
    assert address_towards(driver) == "127.0.0.1"


@pytest.mark.usefixtures("_no_names", "_routes")
def test_a_host_without_another_address_gets_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a loopback address would hold shards that tasks of other hosts poll."""
    monkeypatch.setattr(agent_start, "_ELSEWHERE", ())

    with pytest.raises(OSError, match=r"driver\.example is this host, which has loopback addresses only"):
        address_towards("driver.example")


def test_the_first_task_of_a_host_starts_an_agent_there(host: Host) -> None:
    """It listens at the address by which the hub will know the host, and is one of the same query."""
    assert host.run_task() == 1
    assert host.run_task("10.0.0.8") == 1  # it is starting

    (setup,) = host.started
    assert (setup.place, setup.hub, setup.secret) == (AgentPlace("10.0.0.7", "10.0.0.7"), HUB, HUB.secret)


def test_no_agent_is_started_where_there_is_one_or_no_hub(host: Host) -> None:
    """The hub tells the planner which hosts have one."""
    assert host.run_task(hub=None) == 0
    assert host.run_task("10.0.0.7", "10.0.0.8") == 0


def test_an_agent_that_does_not_join_is_followed_by_another(host: Host) -> None:
    """Every half minute, for as long as the query runs. An agent that had joined is replaced at once."""
    host.run_task()
    host.now += 29.0
    assert host.run_task() == 1
    host.now += 1.0
    assert host.run_task() == 2

    host.now += 300.0
    assert host.run_task("10.0.0.7") == 2
    assert host.run_task() == 3


def test_an_agent_that_cannot_be_started_is_no_error_of_the_task(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """It polls. The log names the problem, and the time of the next attempt."""
    host.address = socket.gaierror(-2, "Name or service not known")
    with caplog.at_level(logging.WARNING):
        assert host.run_task() == host.run_task() == 0
        host.now += 30.0
        host.address, host.failure = "10.0.0.7", OSError(12, "Cannot allocate memory")
        assert host.run_task() == 0
    host.now += 30.0
    host.failure = None
    assert host.run_task() == 1

    first, second = caplog.messages
    assert "next attempt in 30 s: [Errno -2] Name or service not known" in first
    assert "next attempt in 30 s: [Errno 12] Cannot allocate memory" in second


def test_queries_side_by_side_have_an_agent_each(host: Host) -> None:
    """Their tasks may run in the same process, in turn."""
    other = replace(HUB, port=4001)
    for _ in range(5):
        host.run_task()
        host.run_task(hub=other)

    assert [setup.hub for setup in host.started] == [HUB, other]


def test_processes_and_hubs_of_the_past_are_forgotten(host: Host) -> None:
    """A Python worker lives for long, and sees many queries and starts of them."""
    for port in range(100):
        host.run_task(hub=replace(HUB, port=port))
        host.processes[-1].returncode = 0

        host.now += 60.0

    assert len(host.starter._processes) <= 1
    assert len(host.starter._next_start) <= 1


def test_a_task_is_sent_the_agents_of_its_own_shards() -> None:
    """There may be hundreds of tasks, and thousands of shards."""
    splits = [SplitId("clicks", f"shardId-{number}") for number in range(4)]
    agents = {split: replace(HUB, port=port) for port, split in enumerate(splits[:3])}
    assignment = FanOutAssignment({"clicks": "arn"}, agents, HUB, frozenset(("10.0.0.7",)))

    assert assignment.only(splits[1:]) == replace(
        assignment, agents={splits[1]: agents[splits[1]], splits[2]: agents[splits[2]]}
    )
