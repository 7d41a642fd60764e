"""The asynchronous sink in real Spark, killed at every step of an epoch: a committed one is stored whole.

What is killed is the driver with its JVM, the JVM alone, the Python processes, or the query, which is
stopped; or Python processes stand still for longer than a request may take. Where, is not a matter of time:
the steps announce themselves, and wait.
"""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from integration.chaos.roles import Target, find
from integration.support import steps
from integration.support.drivers import TIMEOUT, Driver, started_drivers
from integration.support.holding_proxy import AFTER, BEFORE, LATE, PASSED, HoldingProxy, Trap
from integration.support.kinesis import REGION
from integration.support.model_streams import ModelStreams
from integration.support.queries import wait_until
from integration.support.sink_driver import SinkDriverPlan
from integration.support.steps import ANSWERED, COMMITTING, ENDED, REQUEST, ROWS, Steps

ROWS_OF_EPOCH = 300
REQUEST_TIMEOUT = 5.0  # seconds

COMMITTED = "committed"  # the commit is over, and Spark has not logged it: its JVM stands still
STEPS = (
    (ROWS, PASSED),
    (REQUEST, BEFORE),
    (REQUEST, AFTER),
    (REQUEST, LATE),
    (ANSWERED, PASSED),
    (ENDED, PASSED),
    (COMMITTING, PASSED),
    (COMMITTED, PASSED),
)
IN_COMMIT = (ENDED, COMMITTING, COMMITTED)

DRIVER = "driver and JVM"
JVM = "JVM"
PYTHON = "Python"  # the workers, or the process that commits
STANDSTILL = "standstill"  # of the same
QUERY = "query"
VICTIMS = (PYTHON, STANDSTILL, QUERY, JVM, DRIVER)


class Blow(NamedTuple):
    """What is struck, and where; for a request, see `HoldingProxy`."""

    victim: str
    step: str
    phase: str = PASSED

    def __str__(self) -> str:
        return f"{self.victim}, {self.phase + ' ' if self.step == REQUEST else ''}{self.step}"


class Store(Protocol):
    """What a test writes to."""

    endpoint: str
    column: str

    def options(self, endpoint: str) -> dict[str, str]: ...
    def rows(self) -> Counter[int]: ...


class HttpStore:
    """An HTTP server that keeps the rows of every request."""

    column = "body"

    def __init__(self) -> None:
        self._rows: Counter[int] = Counter()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer._rows.update(row["id"] for row in rows)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def options(self, endpoint: str) -> dict[str, str]:
        return {"destination": f"{steps.__name__}:SteppedHttp", "url": f"{endpoint}/rows"}

    def rows(self) -> Counter[int]:
        with self._lock:
            return Counter(self._rows)


class KinesisStore:
    column = "data"

    def __init__(self, service: ModelStreams) -> None:
        self._service = service
        self._stream = service.create(2)
        self.endpoint = service.endpoint

    def options(self, endpoint: str) -> dict[str, str]:
        return {
            "destination": f"{steps.__name__}:SteppedKinesis",
            "streamName": self._stream,
            "endpointUrl": endpoint,
            "region": REGION,
        }

    def rows(self) -> Counter[int]:
        return Counter(json.loads(record.data)["id"] for record in self._service.read(self._stream))


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """By the name of the destination."""
    if request.param == "kinesis":
        yield KinesisStore(request.getfixturevalue("service"))
        return
    made = HttpStore()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@dataclass
class Run:
    """A query, over all the drivers that it takes."""

    plan: SinkDriverPlan
    store: Store
    proxy: HoldingProxy
    steps: Steps
    drivers: list[Driver]
    struck: dict[int, Blow] = field(default_factory=dict)  # by the epoch that was in progress
    files: int = 0
    began: float = field(default_factory=time.monotonic)
    attempts: Iterator[int] = field(default_factory=itertools.count)

    def start(self) -> Driver:
        driver = Driver(replace(self.plan, attempt=next(self.attempts)), "integration.support.sink_driver")
        self.drivers.append(driver)
        return driver

    def add_epoch(self) -> None:
        ids = range(self.files * ROWS_OF_EPOCH, (self.files + 1) * ROWS_OF_EPOCH)
        hidden = self.plan.source / f".{self.files}"
        hidden.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
        hidden.rename(self.plan.source / f"{self.files:06}.json")
        self.files += 1

    def committed(self) -> int:
        """The epochs that Spark has logged as committed."""
        found = sorted(int(file.name) for file in self.plan.checkpoint.glob("commits/[0-9]*"))
        assert found == list(range(len(found)))
        return len(found)

    def repeated(self) -> Counter[int]:
        """How many rows were stored again, by epoch."""
        found: Counter[int] = Counter()
        for row, count in self.store.rows().items():
            if count > 1:
                found[row // ROWS_OF_EPOCH] += count - 1
        return found

    def slow(self) -> set[int]:
        """The epochs with requests that took too long, if only because the machine is busy."""
        return {each["batch_id"] for each in self.steps.figures if each["timeouts"]}

    def check(self) -> None:
        """All rows of committed epochs are stored, and only an epoch that was struck has rows twice."""
        stored = self.store.rows()
        missing = set(range(self.committed() * ROWS_OF_EPOCH)) - stored.keys()
        assert not missing, f"{len(missing)} rows of committed epochs: {self.struck}"
        assert self.repeated().keys() <= self.struck.keys() | self.slow()

    def strike(self, driver: Driver, blow: Blow) -> bool:
        """Strikes; returns whether the query continues."""
        epoch = self.committed()
        assert epoch == self.files
        self.struck[epoch] = blow
        trap = Trap(COMMITTING if blow.step == COMMITTED else blow.step, blow.phase)
        self.proxy.trap = self.steps.trap = trap
        self.add_epoch()
        driver.wait_until(trap.reached.is_set, str(blow))
        if blow.step == COMMITTED:
            _signal(find(driver.mark)["driver"], signal.SIGSTOP)
            trap.release()
        goes_on = _BLOWS[blow.victim](self, driver, blow)
        trap.release()
        self.proxy.trap = self.steps.trap = None
        if goes_on:
            # Where its commit was struck, Spark may have learnt of its success, or the query fails.
            wait_until(lambda: self.committed() > epoch or not _runs(driver), f"an end of {blow}")
            assert _runs(driver) or (blow.victim == PYTHON and blow.step in IN_COMMIT), driver.log.read_text()
        elif blow.victim != QUERY or blow.step not in IN_COMMIT:
            assert self.committed() == epoch
        self.check()
        print(f"{blow}: epoch {epoch}, {time.monotonic() - self.began:.0f} s after the start", flush=True)
        if not _runs(driver):
            self.wait_until_nothing_runs(driver)
        elif not goes_on:
            driver.wait_for("done")
            driver.end()
        return goes_on and _runs(driver)

    # --- blows; each returns whether the query is expected to continue ----------------------------------

    def kill_driver(self, driver: Driver, _: Blow) -> bool:
        driver.kill_only_driver()
        self.wait_until_nothing_runs(driver)
        return False

    def kill_jvm(self, driver: Driver, _: Blow) -> bool:
        _signal(find(driver.mark)["driver"], signal.SIGKILL)
        driver.process.wait(TIMEOUT)
        self.wait_until_nothing_runs(driver)
        return False

    def kill_python(self, driver: Driver, blow: Blow) -> bool:
        found = find(driver.mark)
        _signal(found["committer" if blow.step in IN_COMMIT else "worker"], signal.SIGKILL)
        _signal(found["driver"], signal.SIGCONT)  # where the commit is over, it was stopped
        return True  # Spark tries a task again

    def stand_still(self, driver: Driver, blow: Blow) -> bool:
        found = find(driver.mark)
        stopped = found["committer" if blow.step in IN_COMMIT else "worker"]
        requests = self.proxy.requests
        _signal(stopped, signal.SIGSTOP)
        time.sleep(REQUEST_TIMEOUT + 0.5)  # for longer than a request may take: this is what is tested
        _signal(stopped, signal.SIGCONT)
        _signal(found["driver"], signal.SIGCONT)
        if blow.step == REQUEST:
            wait_until(lambda: self.proxy.requests > requests, "the request to be sent again")
        return True

    def stop_query(self, driver: Driver, blow: Blow) -> bool:
        found = find(driver.mark)
        _send(driver, "stop")
        _signal(found["driver"], signal.SIGCONT)
        if blow.step not in IN_COMMIT:  # a commit is not interrupted
            driver.wait_for("done")
            gone = set(found["worker"])
            wait_until(lambda: not gone & set(find(driver.mark)["worker"]), "the workers to end")
        return False

    def wait_until_nothing_runs(self, driver: Driver) -> None:
        """By itself, and though a request or a step has no answer yet."""
        wait_until(lambda: not driver.processes(), f"the driver's processes are gone: {self.struck}")


_BLOWS: dict[str, Callable[[Run, Driver, Blow], bool]] = {
    DRIVER: Run.kill_driver,
    JVM: Run.kill_jvm,
    PYTHON: Run.kill_python,
    STANDSTILL: Run.stand_still,
    QUERY: Run.stop_query,
}


def _signal(targets: Sequence[Target], number: signal.Signals) -> None:
    assert targets
    for target in targets:
        target.signal(number)


def _runs(driver: Driver) -> bool:
    return driver.process.poll() is None


def _send(driver: Driver, line: str) -> None:
    assert driver.process.stdin is not None
    driver.process.stdin.write(f"{line}\n".encode())
    driver.process.stdin.flush()


QUICK = {
    "http": [Blow(PYTHON, REQUEST, AFTER), Blow(STANDSTILL, REQUEST, AFTER), Blow(DRIVER, COMMITTED)],
    "kinesis": [Blow(PYTHON, ROWS), Blow(JVM, REQUEST, LATE), Blow(PYTHON, COMMITTING)],
}


def matrix() -> Iterator[Any]:
    for name, blows in QUICK.items():
        yield pytest.param(name, blows, id=name)
    for name in QUICK:
        for victim in VICTIMS:
            blows = [Blow(victim, *step) for step in STEPS]
            yield pytest.param(name, blows, id=f"{name}, {victim}", marks=pytest.mark.soak(seconds=90))


@pytest.mark.parametrize(("store", "blows"), list(matrix()), indirect=["store"])
def test_no_row_of_a_committed_epoch_is_missing(store: Store, blows: list[Blow], tmp_path: Path) -> None:
    """Whatever is struck at whichever step."""
    proxy = HoldingProxy(store.endpoint, lambda *_: REQUEST)
    with Steps().running() as announced, proxy.running(), started_drivers() as drivers:
        options = {
            **store.options(proxy.endpoint),
            "maxBatchSize": "50",
            "requestTimeout": f"{REQUEST_TIMEOUT:g}s",
            "progressListener": f"{steps.__name__}:committing",
        }
        run = Run(SinkDriverPlan(0, str(tmp_path), store.column, options), store, proxy, announced, drivers)
        run.plan.source.mkdir()
        driver = None
        following = run.start()
        for blow in blows:
            if driver is None:
                # While one runs to its death the next one warms up.
                driver, following = following, run.start()
                driver.wait_for("ready")
                _send(driver, "go")
                wait_until(lambda: run.committed() == run.files, "the epoch that was struck")
                run.check()
            if not run.strike(driver, blow):
                driver = None
        if driver is None:
            driver = following
            driver.wait_for("ready")
            _send(driver, "go")
        run.add_epoch()
        _send(driver, "end")
        driver.wait_for("done")
        sent = proxy.requests
        driver.end()
        assert proxy.requests == sent, "the query has ended"

    stored, repeated = store.rows(), run.repeated()
    assert set(stored) == set(range(run.files * ROWS_OF_EPOCH))
    assert run.committed() == run.files
    run.check()
    for epoch, blow in run.struck.items():
        if blow.step in IN_COMMIT and blow.victim in (JVM, DRIVER) and epoch not in run.slow():
            assert repeated[epoch] == ROWS_OF_EPOCH, "Spark writes an epoch again that it has not logged"
    told = {each["batch_id"]: each for each in announced.figures if each["outcome"] == "committed"}
    assert [told[epoch]["records"] for epoch in range(run.files)] == [ROWS_OF_EPOCH] * run.files
    print(
        f"\n{store.column}: {len(blows)} blows, {len(drivers)} drivers, {time.monotonic() - run.began:.0f} s"
    )
    for epoch, blow in run.struck.items():
        print(f"  {blow!s:36} {repeated[epoch]:4} rows again")
    print(
        f"  {run.files} epochs, {run.files * ROWS_OF_EPOCH} rows, {stored.total()} stored, none missing; "
        f"{repeated.total()} again, in {len(repeated)} epochs"
    )
