"""A driver that writes to S3 is killed with SIGKILL at every step of a commit: each row is written once."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from integration.support import s3_process, servers
from integration.support.directory import Directory
from integration.support.drivers import TIMEOUT, Driver, started_drivers
from integration.support.holding_proxy import AFTER, BEFORE, LATE, PASSED, HoldingProxy, Trap
from integration.support.s3 import Lake
from integration.support.s3_driver import S3DriverPlan
from integration.support.servers import Server

SEED = 20261121
ROWS = 300  # of an epoch
_FIRST = 1_790_000_000  # seconds since the epoch; when the first file was written
EPOCH_ROWS = s3_process.TASKS * s3_process.ROWS  # of one without Spark

# Between write and note, note and complete, complete and manifest, manifest and Spark's own commit.
STEPS = ("create", "part", "look", "note", "complete", "manifest", "orphans", "settle", "forget")
FIRST = [
    ("manifest", BEFORE),
    ("complete", AFTER),
    ("manifest", AFTER),
    ("forget", PASSED),
    ("manifest", LATE),
]


@pytest.fixture(scope="module")
def second_s3() -> Iterator[Server]:
    """An S3 that is not moto's."""
    with servers.ministack("s3") as server:
        yield server


@dataclass
class Source:
    """Files of rows, each an epoch."""

    directory: Path
    files: int = 0

    def add(self) -> None:
        ids = range(self.files * ROWS, (self.files + 1) * ROWS)
        hidden = self.directory / f".{self.files}"
        hidden.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
        os.utime(hidden, (_FIRST + self.files, _FIRST + self.files))  # Spark reads the oldest first
        hidden.rename(self.directory / f"{self.files:06}.json")
        self.files += 1


def committed(lake: Lake | Directory) -> Counter[int]:
    """The rows that count now, read without Spark."""
    return rows(lake, lake.files())


def rows(lake: Lake | Directory, keys: Iterable[str]) -> Counter[int]:
    found: Counter[int] = Counter()
    for key in keys:
        body = lake.get(key)
        if key.endswith(".jsonl"):
            found.update(json.loads(line)["id"] for line in body.splitlines())
        else:
            found.update(pq.read_table(io.BytesIO(body)).column("id").to_pylist())
    return found


def points(chosen: random.Random) -> Iterator[Trap]:
    """The dangerous ones first, then all others, in a random order, over and over."""
    for step, phase in FIRST:
        yield Trap(step, phase, 0 if step == "manifest" else chosen.randrange(3))
    others = [each for each in itertools.product(STEPS, (BEFORE, AFTER, LATE, PASSED)) if each not in FIRST]
    while True:
        chosen.shuffle(others)
        yield from (Trap(step, phase, chosen.randrange(4)) for step, phase in others)


@pytest.mark.parametrize("at_random", [2, pytest.param(50, marks=pytest.mark.soak(seconds=150))])
@pytest.mark.parametrize(
    ("name", "file_format", "publish"),
    [("ministack", "parquet", "manifest"), ("moto", "jsonl", "manifest"), ("ministack", "jsonl", "visible")],
)
def test_killed_at_every_step(
    moto: Server,
    second_s3: Server,
    tmp_path: Path,
    *,
    name: str,
    file_format: str,
    publish: str,
    at_random: int,
) -> None:
    """The same calls from a process without Spark, which can be killed often: at every step, with the request
    lost, its answer lost, the request arriving late or all being well, half of them on each server; and at
    any time.
    """
    lake = Lake((moto if name == "moto" else second_s3).endpoint)
    chosen = random.Random(SEED)
    log = tmp_path / "log"
    log.mkdir()
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["integration.support.s3_process", "sluice.destinations.files"])
    every = [
        Trap(step, phase, chosen.randrange(4)) for step in STEPS for phase in (BEFORE, AFTER, LATE, PASSED)
    ]
    chosen.shuffle(every)
    half = slice(len(every) // 2) if name == "moto" or publish == "visible" else slice(len(every) // 2, None)
    traps: list[Trap | None] = [*every[half], *[None] * at_random]
    chosen.shuffle(traps)
    replayed = 0
    with HoldingProxy(lake.endpoint).running() as proxy:
        options = lake.options(proxy.endpoint, fileFormat=file_format, partitionBy="part", publish=publish)
        batches = 0
        for number, trap in enumerate([*traps, None]):
            is_last = number == len(traps)
            logged = len(list(log.iterdir()))
            replayed += committed(lake).total() > logged * EPOCH_ROWS
            batches = logged + 6  # one may have been committed already, and some pass before the trap
            proxy.trap = trap
            arguments = (options, str(log), f"run-{number}", batches)
            process = processes.Process(target=s3_process.run, args=arguments)
            process.start()
            if trap is not None:
                assert trap.reached.wait(TIMEOUT), trap
            elif not is_last:
                time.sleep(chosen.uniform(0.0, 1.0))
            if not is_last:
                process.kill()
            process.join(TIMEOUT)
            if trap is not None:
                trap.release()
            proxy.wait_until_left()  # a manifest that came between two looks would make them differ
            logged = len(list(log.iterdir()))
            least, most = (Counter(range(each * EPOCH_ROWS)) for each in (logged, logged + 1))
            assert committed(lake) in (least, most), (number, trap)
            if publish == "visible":  # the last epoch may be there in part
                shown = rows(lake, (key for key in lake.listed() if "/_sluice/" not in key))
                assert least <= shown <= most, (number, trap)
        assert process.exitcode == 0

    assert committed(lake) == Counter(range(batches * EPOCH_ROWS))
    lake.check_nothing_else()
    print(
        f"\n{name}, {file_format}: {len(traps)} kills, {at_random} of them at random; {replayed} batches "
        f"came again after their manifest; {batches} batches, {batches * EPOCH_ROWS} rows sent, "
        f"{committed(lake).total()} read, all of them once"
    )


LONG = pytest.mark.soak(seconds=200)


@pytest.mark.parametrize(
    ("name", "file_format", "kills"),
    [
        ("moto", "parquet", 2),
        pytest.param("moto", "parquet", 10, marks=LONG),
        pytest.param("ministack", "jsonl", 10, marks=LONG),
    ],
)
def test_a_killed_driver_writes_every_row_once(
    moto: Server, second_s3: Server, tmp_path: Path, name: str, file_format: str, *, kills: int
) -> None:
    """At every moment the rows that count are those of whole epochs, without duplicates; in the end no row is
    missing, and nothing else is left in the bucket.
    """
    lake = Lake((moto if name == "moto" else second_s3).endpoint)
    chosen = random.Random(SEED)
    killed: list[str] = []
    with HoldingProxy(lake.endpoint).running() as proxy, started_drivers() as drivers:
        options = lake.options(proxy.endpoint, fileFormat=file_format, partitionBy="part")
        plan = S3DriverPlan(0, str(tmp_path), options)
        plan.source.mkdir()
        source = Source(plan.source)
        attempts = itertools.count()

        def start() -> Driver:
            driver = Driver(replace(plan, attempt=next(attempts)), "integration.support.s3_driver")
            drivers.append(driver)
            return driver

        def go(driver: Driver) -> None:
            driver.wait_for("ready")
            assert driver.process.stdin is not None
            driver.process.stdin.write(b"go\n")
            driver.process.stdin.flush()

        following = start()
        traps = points(chosen)
        while len(killed) < kills:
            # While one runs to its death the next one warms up.
            driver, following = following, start()
            trap = next(traps)
            source.add()
            source.add()
            proxy.trap = trap
            go(driver)
            driver.wait_until(trap.reached.is_set, f"{trap.phase} {trap.step}")
            time.sleep(chosen.uniform(0.0, 0.2) if trap.phase == PASSED else 0.0)
            driver.kill()
            trap.release()
            killed.append(f"{trap.phase} {trap.step}")
            found = committed(lake)
            assert set(found.values()) <= {1}, killed
            assert set(Counter(row // ROWS for row in found).values()) <= {ROWS}, killed
        proxy.trap = None
        source.add()
        go(following)
        following.wait_for("done")
        following.end()

    assert committed(lake) == Counter(range(source.files * ROWS))
    lake.check_nothing_else()
    print(
        f"\n{name}, {file_format}: {len(killed)} kills ({', '.join(killed)}), {source.files} epochs, "
        f"{source.files * ROWS} rows sent, {sum(committed(lake).values())} read, all of them once"
    )
