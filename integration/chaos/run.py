"""One run: makes the faults that were drawn, keeps drivers running, lets all drain, and counts."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration.chaos.drivers import Drivers
from integration.chaos.files import Committed, read_committed
from integration.chaos.follower import Follower
from integration.chaos.history import History, Sample, Struck
from integration.chaos.oracle import Copies, Files, Order, count_copies, count_rows
from integration.chaos.pipeline import COPIED, COPY, LAKE, ORDERS, PROFILE, QUERIES, PipelinePlan
from integration.chaos.plan import Fault, draw_faults
from integration.chaos.producer import Producer
from integration.chaos.reader_clock import ReaderClock
from integration.chaos.strikes import Strikes
from integration.chaos.weather import Weather
from integration.foreign.servers import SERVERS
from integration.model import KinesisModel, Laws, RealClock
from integration.model.server import serving
from integration.support import servers
from integration.support.s3 import Lake

LONGEST_STALL: Final = 180.0
"""Seconds after the last fault without a batch of a query that has something to do, at most."""
_STOPPED_WITHIN: Final = 180.0
_UP_WITHIN: Final = 300.0
_DEREGISTERED_WITHIN: Final = 60.0
_TICK: Final = 0.1
_SAMPLE: Final = 0.5
_SAY: Final = 10.0
_SHARDS: Final = 4
_EMPTY_PAGES: Final = 8
_OFF: Final = 90.0
_MARK: Final = "SLUICE_CHAOS"
MINISTACK: Final = "ministack"


@dataclass(frozen=True)
class Settings:
    seed: int
    seconds: float  # with faults
    rate: float  # orders a second
    output: Path  # a directory for logs and the table
    s3: str = MINISTACK  # the server that has the files: `MINISTACK`, or one of `make foreign`


@dataclass
class Verdict:
    settings: Settings
    history: History
    copies: Copies
    files: Files
    drivers: int
    runs: list[tuple[str, float]]
    drained: float | None
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return self.copies.is_right and self.files.is_right and not self.problems


def run_chaos(settings: Settings, say: Callable[[str], None]) -> Verdict:
    """Runs, and leaves no process behind, however it ends."""
    settings.output.mkdir(parents=True, exist_ok=True)
    settings.output.joinpath("faults.log").unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(_warded()))
        server = stack.enter_context(_s3(settings.s3))
        reader_clock = ReaderClock(directory / "clock")
        os.environ.update(reader_clock.environment)  # of processes that are started from here on
        # All laws. Runs of empty pages are short, because each page of them takes a fifth of a second.
        laws = Laws(empty_pages=_EMPTY_PAGES)
        service_clock = RealClock(offset=random.Random(f"{settings.seed}/clock").uniform(-_OFF, _OFF))
        kinesis = stack.enter_context(serving(laws, service_clock, settings.seed))
        lake = servers.when_ready(lambda: Lake(server.endpoint))
        plan = PipelinePlan(0, str(directory), "local[2]", kinesis.endpoint, lake.endpoint, lake.path, {}, {})
        keys = _Keys(plan.credentials)
        keys.rotate()
        world = _World(
            settings,
            kinesis.model,
            Drivers(plan, settings.seed),
            Weather(kinesis, reader_clock, keys.rotate),
            Producer(kinesis.model, settings.rate, settings.seed),
            {
                COPY: Follower(kinesis.model, ORDERS, plan.checkpoint(COPY)),
                LAKE: Follower(kinesis.model, COPIED, plan.checkpoint(LAKE)),
            },
            say,
        )
        try:
            world.run()
            say("counting every record")
            return world.judge(read_committed(lake))
        finally:
            _keep_logs(directory, settings.output)


def _s3(name: str) -> contextlib.AbstractContextManager[servers.Server]:
    if name == MINISTACK:
        return servers.ministack("s3")
    foreign = SERVERS[name]
    installed = foreign.install()
    return servers.running(name, lambda port, directory: (foreign.command(installed, port, directory), {}))


@contextlib.contextmanager
def _warded() -> Iterator[str]:
    """A directory for everything, and a warden who kills all processes that the block leaves."""
    os.environ[_MARK] = mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != _MARK}
    made = tempfile.mkdtemp(prefix="sluice-chaos-")
    warden = subprocess.Popen(
        (sys.executable, "-I", "-S", str(Path(__file__).with_name("warden.py")), f"{_MARK}={mark}", made),
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert warden.stdin is not None
    elsewhere, tempfile.tempdir = tempfile.tempdir, made  # the S3 server's directory, too
    try:
        yield made
    finally:
        warden.stdin.close()
        status = warden.wait()  # bounded
        tempfile.tempdir = elsewhere
        os.environ.clear()
        os.environ.update(environment)
        if status:
            raise RuntimeError("processes were left that could not be killed")


def _keep_logs(directory: Path, output: Path) -> None:
    for pattern in ("driver-*.log", "events-*.jsonl"):
        for old in output.glob(pattern):
            old.unlink()
        for file in directory.glob(pattern):
            output.joinpath(file.name).write_bytes(file.read_bytes())


def registered_consumers(model: KinesisModel) -> set[str]:
    found: set[str] = set()
    for stream in (ORDERS, COPIED):
        arn = model.call("DescribeStreamSummary", {"StreamName": stream}, access_key="chaos")[
            "StreamDescriptionSummary"
        ]["StreamARN"]
        consumers = model.call("ListStreamConsumers", {"StreamARN": arn}, access_key="chaos")["Consumers"]
        found |= {consumer["ConsumerARN"] for consumer in consumers}
    return found


def _last_line(error: str) -> str:
    lines = [line for line in error.splitlines() if "rror" in line] or error.splitlines()
    return lines[-1][:600]


class _Keys:
    """The access key that is valid."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._numbers = itertools.count()
        self._key = ""

    def rotate(self) -> str:
        """Makes a new one the valid one, and returns the old one."""
        old, self._key = self._key, f"KEY{next(self._numbers)}"
        unfinished = self._file.with_suffix(".new")
        keys = {PROFILE: (self._key, "secret"), LAKE: ("test", "test")}
        unfinished.write_text(
            "".join(
                f"[{profile}]\naws_access_key_id={key}\naws_secret_access_key={secret}\n"
                for profile, (key, secret) in keys.items()
            )
        )
        unfinished.replace(self._file)
        return old


class _World:
    def __init__(  # noqa: PLR0917 - made in one place
        self,
        settings: Settings,
        model: KinesisModel,
        drivers: Drivers,
        weather: Weather,
        producer: Producer,
        followers: dict[str, Follower],
        say: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._model = model
        self._drivers = drivers
        self._weather = weather
        self._strikes = Strikes()
        self._producer = producer
        self._followers = followers
        self._say = say
        self._history = History()
        self._began = time.monotonic()  # until the pipeline is up
        self._wall = time.time()
        self._next_sample = self._next_line = 0.0
        self._going: list[tuple[float, int, Fault]] = []  # faults by when they are over
        self._numbers = itertools.count()
        self._drained: float | None = None
        self._problems: list[str] = []
        for stream in (ORDERS, COPIED):
            model.create(stream, _SHARDS)

    # --- the run ---

    def run(self) -> None:
        """From the first order to the end of the drivers."""
        with self._producer.putting():
            self._come_up()
            self._storm()
        self._drain()
        self._end()

    def _come_up(self) -> None:
        self._say("starting the pipeline")
        self._drivers.start()
        while not all(follower.committed >= 1 for follower in self._followers.values()):
            if self._now > _UP_WITHIN:
                raise TimeoutError(f"the pipeline is not up after {_UP_WITHIN:.0f} s: {self._tail()}")
            self._tick()
        took = self._now
        self._began, self._wall = time.monotonic(), time.time()
        self._history.samples.clear()
        self._next_sample = self._next_line = 0.0
        self._say(f"up after {took:.0f} s; faults for {self._settings.seconds:.0f} s")

    def _storm(self) -> None:
        faults = draw_faults(self._settings.seed, self._settings.seconds)
        due = iter(faults)
        fault = next(due, None)
        while self._now < self._settings.seconds:
            while fault is not None and fault.at <= self._now:
                self._strike(fault)
                fault = next(due, None)
            while self._going and self._going[0][0] <= self._now:
                self._take_back(heapq.heappop(self._going)[2])
            self._drivers.prepare()
            self._tick()

    def _drain(self) -> None:
        self._weather.clear()
        self._strikes.clear()
        self._producer.stop()
        began = self._now
        self._say(f"no more faults, {self._producer.count} orders put; draining")
        while True:
            self._tick()
            if self._history.samples[-1].at > began and self._history.samples[-1].is_drained:
                self._drained = self._now - began
                return
            for query in QUERIES:
                if self._history.stalled(query, began) > LONGEST_STALL:
                    waits = f"{self._history.samples[-1].waiting[query]} records wait"
                    self._problems.append(
                        f"{query} did nothing for {LONGEST_STALL:.0f} s without faults; {waits}"
                    )
                    return

    def _end(self) -> None:
        self._say("stopping the queries")
        if (problem := self._drivers.end(_STOPPED_WITHIN)) is not None:
            self._problems.append(f"the driver, told to stop: {problem}")
        self._hear()
        self._drivers.check_dying(is_excused=False)
        self._problems += [f"left behind by a dead {each}" for each in self._drivers.left_behind]
        self._problems += [f"consumer {arn} is still registered" for arn in self._left_consumers()]
        self._problems += [
            f"{failure.query} failed by itself at {failure.at:.0f} s" for failure in self._history.unexplained
        ]

    def judge(self, committed: Committed) -> Verdict:
        oracle = self._model.oracle
        places = {}
        for record in oracle.records(ORDERS):
            key, number, _ = record.data.decode().split(":", 2)
            places[Order(key, int(number))] = (record.shard, record.sequence_number)
        follower = self._followers[COPY]
        copied: dict[str, list[str]] = {}
        data: list[tuple[str, bytes]] = []
        for record in oracle.records(COPIED):
            copied.setdefault(record.shard, []).append(record.sequence_number)
            data.append((record.sequence_number, record.data))
        copies = count_copies(
            self._producer.put,
            data,
            lambda order: follower.batch_of(*places[order]),
            oracle.unacknowledged(),
        )
        files = count_rows(copied, committed.batches)
        problems = self._problems + committed.problems
        return Verdict(
            self._settings,
            self._history,
            copies,
            files,
            self._drivers.count,
            [(run, at - self._wall) for run, at in self._drivers.runs],
            self._drained,
            problems,
        )

    # --- faults ---

    def _strike(self, fault: Fault) -> None:
        name = fault.kind.name
        match name.split(" ")[0]:
            case "burst":
                count = 500 + int(2500 * fault.draws[0])
                self._producer.burst(count)
                hit: str | None = f"{count}"
            case "large":
                self._producer.burst(8, 100_000)
                hit = "8 of up to 100 KB"
            case "pause":
                self._producer.pause(paused=True)
                hit = f"{fault.seconds:.0f} s"
            case "kill" if name == "kill driver":
                hit = self._drivers.kill()
                if hit is not None:
                    self._history.kills.append(self._now)
                    self._drivers.start()
            case "kill" | "stop" | "fill":
                hit = self._strikes.begin(fault, self._drivers.mark)
            case _:
                hit = self._weather.begin(fault)
        self._history.struck.append(Struck(fault, self._now, hit))
        self._log(f"{name}: {hit or 'nothing there'}")
        if fault.seconds:
            heapq.heappush(self._going, (self._now + fault.seconds, next(self._numbers), fault))

    def _take_back(self, fault: Fault) -> None:
        if fault.kind.name.startswith("pause"):
            self._producer.pause(paused=False)
        self._strikes.end(fault)
        self._weather.end(fault)
        self._log(f"{fault.kind.name} is over")

    # --- looking ---

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        time.sleep(_TICK)
        self._poll_drivers()
        if self._now >= self._next_sample:
            self._next_sample = self._now + _SAMPLE
            self._sample()
        if self._now >= self._next_line and self._history.samples:
            self._next_line = self._now + _SAY
            self._say(self._line())

    def _hear(self) -> None:
        for event in self._drivers.events():
            if event["event"] == "failed":
                self._failed(event["at"] - self._wall, event["query"], event["error"])

    def _poll_drivers(self) -> None:
        self._hear()
        if (error := self._drivers.has_died()) is not None:
            self._failed(self._now, "driver", error)
            self._drivers.start()
        self._drivers.check_dying(is_excused=self._strikes.has_stopped)

    def _failed(self, at: float, query: str, error: str) -> None:
        failure = self._history.fail(at, query, error)
        if failure.cause is not None:
            self._log(f"query {query} ended, by: {failure.cause.fault.kind.name}")
        else:
            self._say(f"!! {query} FAILED BY ITSELF: {_last_line(error)}")

    def _sample(self) -> None:
        for follower in self._followers.values():
            follower.poll()
        copied = sum(len(shard.records) for shard in self._model.shards() if shard.stream == COPIED)
        self._history.samples.append(
            Sample(
                self._now,
                self._producer.count,
                copied,
                {query: follower.unread() for query, follower in self._followers.items()},
                {query: follower.committed for query, follower in self._followers.items()},
            )
        )

    def _line(self) -> str:
        sample = self._history.samples[-1]
        struck = [each for each in self._history.struck if each.hit is not None]
        waiting = ", ".join(f"{query} {sample.waiting[query]}" for query in QUERIES)
        batches = "/".join(str(sample.committed[query]) for query in QUERIES)
        return (
            f"{sample.put} put, {sample.copied} copied, waiting: {waiting}; batches {batches}; "
            f"{len(struck)} faults, {len(self._history.failures)} queries ended, driver {self._drivers.count}"
        )

    def _log(self, what: str) -> None:
        """A line of the log of faults, which lies next to the drivers' logs."""
        with self._settings.output.joinpath("faults.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} [{self._now:7.1f}] {what}\n")

    def _left_consumers(self) -> list[str]:
        """The consumers that a query had to deregister when it was stopped, and has not: those that its log
        has as registered by itself. One that it does not have, because of a kill in between, stays.
        """
        ours = frozenset[str]().union(*(self._followers[query].consumers for query in self._drivers.pushed))
        end = time.monotonic() + _DEREGISTERED_WITHIN
        while left := ours & registered_consumers(self._model):
            if time.monotonic() > end:
                return sorted(left)
            time.sleep(0.5)
        return []

    def _tail(self) -> str:
        log = self._drivers.log
        return log.read_text(errors="replace")[-3000:] if log.exists() else "no log"
