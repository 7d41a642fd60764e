"""A standalone Spark cluster whose master, driver and workers are on separate hosts (see `hosts`)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from integration.model.server import serving
from integration.support.background import repeating
from integration.support.cluster_driver import PROGRESS, ApplicationPlan, QueryPlan
from integration.support.fan_out import MARK, kill
from integration.support.hosts import Host, Network, network
from integration.support.model_streams import LAWS, ModelStreams
from integration.support.paths import ROOT
from integration.support.processes import marked_processes
from integration.support.producer import Producer
from integration.support.queries import wait_until
from integration.support.recorder import Row
from integration.support.servers import leashed
from integration.support.spark import JVM_OPTIONS

if TYPE_CHECKING:
    from typing_extensions import Self

MASTER: Final = "master"
DRIVER: Final = "driver"
WORKERS: Final = ("worker-1", "worker-2", "worker-3")

_PORT: Final = 7077
_CORES: Final = "2"
_MEMORY: Final = "1g"
_START: Final = 300.0
_PATIENCE: Final = 300.0
"""Seconds. Only broken code takes as long, on the busiest machine."""
_WORKER_TIMEOUT: Final = 10
"""Seconds without a heartbeat after which the master gives up a worker, and its tasks run again elsewhere. By
default Spark waits for 60."""
_AGENT: Final = b"sluice.kinesis.agent"
_PYTHONS: Final = ("-u", "PYSPARK_DRIVER_PYTHON", "-u", "PYSPARK_PYTHON")
"""For ``env``: those of the tests are not those of an application that is submitted."""
_TRICKLE: Final = 2.5
"""Seconds between two records."""
LAG_MAY_BE_OLD: Final = 15.0
"""Seconds for which a lag may be believed that was true."""


class TimedProducer(Producer):
    """Knows when each record was put."""

    def __init__(self, streams: ModelStreams, stream: str, *, per_put: int = 24, pause: float = 0.1) -> None:
        super().__init__(streams, stream, per_put=per_put, pause=pause)
        self.times: list[float] = []

    def put(self, count: int) -> None:
        super().put(count)
        self.times += [time.time()] * count

    @contextlib.contextmanager
    def trickling(self) -> Iterator[None]:
        """Puts a record now and then, for the length of the ``with`` block: hardly any work for Spark."""
        before, self._per_put = self._per_put, 0
        try:
            with repeating(lambda: self.put(1), _TRICKLE):
                yield
        finally:
            self._per_put = before

    def put_at(self) -> dict[tuple[str, int], float]:
        """Shard and sequence number to the time of the put."""
        return {
            (where.shard, int(where.sequence_number)): at
            for (where, _), at in zip(self._placed, self.times, strict=False)
        }


@dataclass(frozen=True)
class Query:
    """A query of the driver, and what it has left on disk so far."""

    plan: QueryPlan
    log: Path
    log_begin: int

    @property
    def directory(self) -> Path:
        return Path(self.plan.directory)

    def batches(self) -> dict[int, list[tuple[float, Row]]]:
        """By batch, its rows with the time at which they came."""
        found = {}
        for file in self.directory.glob("*.rows"):
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            batch = int(file.stem)
            found[batch] = [(at, Row(batch, shard, int(n), data.encode())) for at, shard, n, data in lines]
        return dict(sorted(found.items()))

    @property
    def rows(self) -> Sequence[Row]:
        return [row for rows in self.batches().values() for _, row in rows]

    def found(self) -> Counter[tuple[str, int, bytes]]:
        return Counter((row.shard, row.sequence_number, row.data) for row in self.rows)

    def count(self) -> int:
        return sum(file.read_bytes().count(b"\n") for file in self.directory.glob("*.rows"))

    def progress(self) -> list[dict[str, Any]]:
        """All progress that the listener has received so far. Spark may tell it late: of the query before as
        well.
        """
        file = self.directory / PROGRESS
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if f'"{self.plan.stream}"' in line.replace('\\"', '"')]

    def text(self) -> str:
        """What the driver has logged since the query was started."""
        return self.log.read_text(errors="replace")[self.log_begin :]

    def lines(self, *parts: str) -> list[str]:
        """The lines of the log that have all of `parts`."""
        return [line for line in self.text().splitlines() if all(part in line for part in parts)]

    # --- what was promised ---------------------------------------------------------------------------

    def longest_unread(self, producer: TimedProducer, since: float) -> tuple[float, str]:
        """The longest time (seconds) for which a record was not read, and its shard.

        `since`: records that were put before do not count (seconds since the epoch).
        """
        put_at = producer.put_at()
        waits = [
            (at - put_at[row.shard, row.sequence_number], row.shard)
            for rows in self.batches().values()
            for at, row in rows
            if put_at.get((row.shard, row.sequence_number), 0.0) >= since
        ]
        return max(waits, default=(0.0, ""))

    def lies(self, producer: TimedProducer) -> list[str]:
        """Where a lag of 0 was reported while a record had been unread for too long."""
        batch_of = {(row.shard, row.sequence_number): row.batch for row in self.rows}
        waiting: dict[str, list[tuple[float, int]]] = {}
        for (shard, number), at in producer.put_at().items():
            waiting.setdefault(shard, []).append((at, batch_of.get((shard, number), sys.maxsize)))
        found = []
        for event in self.progress():
            told = datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()
            for shard, lag in _lags(event).items():
                unread = [at for at, batch in waiting.get(shard, ()) if batch > event["batchId"]]
                oldest = told - min(unread, default=told)
                if lag == 0 and oldest > LAG_MAY_BE_OLD:
                    found.append(f"batch {event['batchId']}: {shard} has lag 0 and waits for {oldest:.1f} s")
        return found


@contextlib.contextmanager
def running_cluster(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster on separate hosts, and a service that they reach; both are gone at the end."""
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(network([MASTER, DRIVER, *WORKERS]))
        server = stack.enter_context(serving(LAWS, host=made.address))
        yield stack.enter_context(Cluster(made, ModelStreams(server), directory, settings or {}))


def _reported(event: Mapping[str, Any]) -> dict[str, Any]:
    latest = event["sources"][0].get("latestOffset")
    return (json.loads(latest) if isinstance(latest, str) else latest) or {}


def _lags(event: Mapping[str, Any]) -> dict[str, int]:
    streams = _reported(event).get("millisBehindLatest", {})
    return {shard: lag for shards in streams.values() for shard, lag in shards.items()}


@dataclass
class Cluster:
    """A cluster that runs. `start_worker` and `query` end with it."""

    network: Network
    service: ModelStreams  # the service, in the outer world
    directory: Path  # for all that it writes
    # environment variables of the master and the workers, besides
    settings: Mapping[str, str] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _driver: subprocess.Popen[bytes] | None = None
    _mark: str = ""
    _log: Path = Path()
    _starts: int = 0

    def __enter__(self) -> Self:
        deploy = "org.apache.spark.deploy"
        place = ("--host", self.host(MASTER).address, "--port", str(_PORT), "--webui-port", "0")
        try:
            self._run_spark(MASTER, "New state: ALIVE", f"{deploy}.master.Master", *place)
            for worker in WORKERS:
                self.start_worker(worker, wait=worker == WORKERS[-1])
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    @property
    def master(self) -> str:
        return f"spark://{self.host(MASTER).address}:{_PORT}"

    def start_worker(self, name: str, *, wait: bool = True) -> None:
        """Starts Spark's worker on a host. It finds the host's address itself."""
        limits = ("--cores", _CORES, "--memory", _MEMORY, "--webui-port", "0")
        place = ("--work-dir", str(self.directory / name), self.master)
        ready = "Successfully registered with master" if wait else ""
        self._run_spark(name, ready, "org.apache.spark.deploy.worker.Worker", *limits, *place)

    def start_driver(self, settings: Mapping[str, str], host: str = DRIVER) -> None:
        """Starts an application in place of the one before."""
        self.stop_driver()
        self._mark = uuid.uuid4().hex
        self._starts += 1
        directory = self.directory / f"driver-{self._starts}"
        directory.mkdir()
        plan = ApplicationPlan(self.master, str(directory), dict(settings))
        module = "integration.support.cluster_driver"
        self._log = self.directory / f"driver-{self._starts}.log"
        with self._log.open("wb") as log:
            self._driver = subprocess.Popen(
                self._command(host, sys.executable, "-m", module, plan.to_json()),
                cwd=ROOT,
                env={**os.environ, MARK: self._mark},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(self.stop_driver)
        self._wait_for_driver("ready")

    @contextlib.contextmanager
    def submitted(
        self, settings: Mapping[str, str], *arguments: str, directory: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Runs ``spark-submit`` for the length of the ``with`` block, on the host of the driver.

        `settings`: environment variables, besides those of the cluster. Which Python is not inherited;
        `arguments`: behind those that say where the cluster is; `directory`: where it is started; it writes
        to the file ``log`` there.
        """
        given = {**self.settings, **settings, "SPARK_CONF_DIR": str(self.directory)}
        environment = ("env", *_PYTHONS, *(f"{key}={value}" for key, value in given.items()))
        submit = str(Path(self.settings["SPARK_HOME"]) / "bin" / "spark-submit")
        command = self._command(DRIVER, *environment, submit, "--master", self.master, *arguments)
        with leashed(command, directory) as process:
            yield process

    def lose_driver(self, host: str) -> None:
        """The host of the driver loses its power."""
        self.host(host).power_off()
        assert self._driver is not None
        self._driver.wait()

    def stop_driver(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        assert driver.stdin is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            driver.stdin.close()
            driver.wait(60)
        while left := marked_processes(f"{MARK}={self._mark}"):
            for process in left:
                kill(process)
            driver.poll()

    @contextlib.contextmanager
    def query(
        self,
        stream: str,
        options: Mapping[str, str],
        *,
        sink: Mapping[str, str] | None = None,
        before: Query | None = None,
        millis_per_row: int = 0,
    ) -> Iterator[Query]:
        """Runs a query for the length of the ``with`` block.

        `sink`: options of the sink that it writes to; `before`: a run of the same query, from which it
        resumes; `millis_per_row`: extra time of a task for a row.
        """
        directory = before.directory if before else self.directory / f"query-{uuid.uuid4().hex[:8]}"
        directory.mkdir(exist_ok=True)
        begin = len(self._log.read_text(errors="replace"))
        place = self.service.endpoint, stream, str(directory)
        plan = QueryPlan(*place, dict(options), dict(sink or {}), millis_per_row)
        query = Query(plan, self._log, begin)
        self._tell(plan.to_json())
        try:
            self._wait_for_driver("started", begin)
            yield query
        finally:
            if self._driver is not None and self._driver.poll() is None:
                self._tell("stop")
                self._wait_for_driver("stopped", begin)

    def wait_until(self, holds: Callable[[], object], what: str, *, timeout: float = _PATIENCE) -> float:
        """Returns how many seconds it took until `holds`."""
        begin = time.monotonic()

        def check() -> object:
            assert self._driver is not None
            assert self._driver.poll() is None, self._log.read_text(errors="replace")[-8000:]
            return holds()

        wait_until(check, what, timeout=timeout)
        return time.monotonic() - begin

    def wait_until_pushed(
        self, query: Query, polls_so_far: Callable[[], int] | None = None, *, batches: int = 5
    ) -> float:
        """Returns how long it took until so many batches in a row had come without a poll."""
        seen = [-1, 0]
        count_polls = polls_so_far or (lambda: self.service.count("GetRecords"))

        def is_pushed() -> bool:
            polls, done = count_polls(), len(list(query.directory.glob("*.rows")))
            if polls != seen[0]:
                seen[:] = [polls, done]
            return done >= seen[1] + batches

        return self.wait_until(is_pushed, f"{batches} batches without a poll")

    def agents(self, name: str) -> list[int]:
        found = []
        for process in self.host(name).processes():
            with contextlib.suppress(OSError):  # gone
                if _AGENT in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                    found.append(process)
        return found

    def executors(self, name: str) -> list[int]:
        """The process ids of Spark's executors on a host."""
        found = []
        for process in self.host(name).processes():
            with contextlib.suppress(OSError):  # gone
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
        return found

    def executor_logs(self) -> str:
        """What executors, their tasks and agents on workers have logged."""
        return "".join(
            file.read_text(errors="replace")
            for name in WORKERS
            for file in self.directory.glob(f"{name}/*/*/stderr")
        )

    def _tell(self, line: str) -> None:
        assert self._driver is not None
        assert self._driver.stdin is not None
        self._driver.stdin.write(line.encode() + b"\n")
        self._driver.stdin.flush()

    def _wait_for_driver(self, line: str, begin: int = 0) -> None:
        self.wait_until(
            lambda: f"\n{line}\n" in "\n" + self._log.read_text(errors="replace")[begin:],
            f"the driver to say {line}",
            timeout=_START,
        )

    def _command(self, name: str, *arguments: str) -> tuple[str, ...]:
        return self.host(name).command("env", "-u", "SPARK_LOCAL_IP", "NO_PROXY=*", "no_proxy=*", *arguments)

    def _run_spark(self, name: str, ready: str, *arguments: str) -> None:
        home = Path(self.settings.get("SPARK_HOME", os.environ["SPARK_HOME"]))
        log = f"{name}.log"
        timeout = f"-Dspark.worker.timeout={_WORKER_TIMEOUT}"
        settings = {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory),
            "SPARK_DAEMON_JAVA_OPTS": f"{timeout} {os.environ.get(JVM_OPTIONS, '')}".strip(),
            "SPARK_DAEMON_MEMORY": "256m",
            **self.settings,
        }
        command = self._command(name, str(home / "bin" / "spark-class"), *arguments)
        begin = (self.directory / log).stat().st_size if (self.directory / log).exists() else 0
        process = self._stack.enter_context(leashed(command, self.directory, settings=settings, log=log))

        def is_ready() -> bool:
            text = (self.directory / log).read_bytes()[begin:].decode(errors="replace")
            assert process.poll() is None, text
            return ready in text

        wait_until(is_ready, f"{name} to start", timeout=_START)
