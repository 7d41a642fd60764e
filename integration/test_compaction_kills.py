"""Compaction is killed at every call that changes something, and runs in parallel to drivers and readers."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pkgutil
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.support import s3_process, servers
from integration.support.directory import Directory
from integration.support.drivers import TIMEOUT
from integration.support.holding_proxy import AFTER, BEFORE, LATE, PASSED, HoldingProxy, Trap
from integration.support.kinesis import REGION
from integration.support.s3 import Lake
from integration.support.servers import Server
from integration.test_files import check
from integration.test_s3_kills import EPOCH_ROWS, SEED, committed, rows
from sluice.cli import commands
from sluice.destinations import read_sink
from sluice.destinations.files.maintenance import Maintenance, Upkeep

COMPACTION = {"targetFileSize": "8KiB", "replacedFileRetention": "0s"}
BATCHES = 3  # before each compaction
COMMANDS = [each.name for each in pkgutil.iter_modules(commands.__path__)]  # the command line loads all
WAYS = [("manifest", "parquet"), ("symlink", "jsonl")]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory if there is one: a disk takes its time to synchronise."""
    shared = Path("/dev/shm")  # noqa: S108 - as above
    made = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    loaded = ["integration.support.s3_process", "sluice.destinations.files", "pandas"]
    context.set_forkserver_preload([*loaded, *(f"{commands.__name__}.{each}" for each in COMMANDS)])
    return context


def by_symlinks(place: Directory | Lake) -> Counter[int]:
    """Rows as readers of symlink manifests find them."""
    return place.by_symlinks() if isinstance(place, Directory) else rows(place, place.symlinked())


def check_exact(place: Directory | Lake, publish: str, batches: int, about: object) -> None:
    """All readers find all rows, each once; no driver is running."""
    everything = Counter(range(batches * EPOCH_ROWS))
    assert committed(place) == everything, about
    assert publish != "symlink" or by_symlinks(place) == everything, about


def check_tidy(options: Mapping[str, str], place: Directory | Lake, publish: str, batches: int) -> None:
    """Later, when a process that was killed cannot be only slow, another compaction removes what it left."""
    found: Any = read_sink(options).destination
    maintenance = Maintenance(
        found._place.store,
        found._place.layout,
        target=8192,
        retention=0.0,
        now=lambda: time.time() + 7200.0,
    )
    # Each deletes what the one before has replaced, unless symlink manifests name it.
    done = [maintenance.run() for _ in range(4)]
    assert done[-1] == Upkeep()
    check_exact(place, publish, batches, "in the end")
    place.check_nothing_else()


@pytest.mark.parametrize("kills", [15, pytest.param(100, marks=pytest.mark.soak(seconds=60))])
@pytest.mark.parametrize(("publish", "file_format"), WAYS)
def test_killed_before_every_call(
    memory: Path, processes: Any, publish: str, file_format: str, *, kills: int
) -> None:
    """One call further each time, or some in the short version; every other compaction finds what the one
    before has left.
    """
    place = Directory(memory / "events")
    options = place.options(fileFormat=file_format, partitionBy="part", publish=publish)
    batch = killed = call = 0
    while killed < kills:
        call += 1 if kills > 50 else 3
        for _ in range(BATCHES):
            s3_process.write(options, "run", batch)
            batch += 1
        process = processes.Process(target=s3_process.compact, args=(place.path, COMPACTION, call))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode in (0, -signal.SIGKILL), call
        check_exact(place, publish, batch, call)
        killed += process.exitcode != 0
        if process.exitcode == 0:  # there are no more calls
            call = 0
        elif killed % 2:
            check_tidy(options, place, publish, batch)
    check_tidy(options, place, publish, batch)
    print(f"\n{publish}, {file_format}: {killed} kills, {batch} batches, each row once")


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.soak(seconds=60))])
@pytest.mark.parametrize(("publish", "file_format"), WAYS)
def test_a_killed_driver_that_compacts(
    memory: Path, processes: Any, publish: str, file_format: str, *, kills: int
) -> None:
    """With `targetFileSize`, and a compaction after each batch."""
    place = Directory(memory / "events")
    log = memory / "log"
    log.mkdir()
    options = place.options(fileFormat=file_format, partitionBy="part", publish=publish, **COMPACTION)
    for number in range(1, kills + 2):
        batches = len(list(log.iterdir())) + 12
        last_call = 0 if number > kills else number if kills > 50 else 6 * number
        arguments = (options, str(log), f"run-{number}", batches, last_call, 1)
        process = processes.Process(target=s3_process.run, args=arguments)
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode == (-signal.SIGKILL if last_call else 0), number
        check(place, publish, len(list(log.iterdir())), EPOCH_ROWS)
    check_tidy(options, place, publish, batches)
    print(f"\n{publish}, {file_format}: {kills} kills, {batches} batches, each row once")


@pytest.fixture(scope="module")
def second_s3() -> Iterator[Server]:
    """An S3 that is not moto's."""
    with servers.ministack("s3") as server:
        yield server


def is_change(method: str, _target: str) -> str:
    return "" if method in ("GET", "HEAD") else "change"


@pytest.mark.parametrize(
    ("name", "publish", "file_format", "kills"),
    [
        ("moto", "symlink", "parquet", 5),
        pytest.param("moto", "symlink", "parquet", 100, marks=pytest.mark.soak(seconds=240)),
        pytest.param("ministack", "manifest", "jsonl", 100, marks=pytest.mark.soak(seconds=240)),
    ],
)
def test_killed_at_every_request(  # noqa: PLR0917 - parametrized
    moto: Server,
    request: pytest.FixtureRequest,
    processes: Any,
    name: str,
    publish: str,
    file_format: str,
    *,
    kills: int,
) -> None:
    """With the request lost, its answer lost, the request arriving late, or all being well. For readers of
    manifests, a late one may arrive when the next compaction is over.
    """
    lake = Lake((moto if name == "moto" else request.getfixturevalue("second_s3")).endpoint)
    options = lake.options(fileFormat=file_format, partitionBy="part", publish=publish)
    phases = itertools.cycle((BEFORE, AFTER, LATE, PASSED))
    batch = killed = call = 0
    with HoldingProxy(lake.endpoint, is_change).running() as proxy:
        through = {**COMPACTION, "endpointUrl": proxy.endpoint, "region": REGION}
        while killed < kills:
            for _ in range(BATCHES):
                s3_process.write(options, "run", batch)
                batch += 1
            trap = proxy.trap = Trap("change", next(phases), call)
            call += 1 if kills > 50 else 9
            process = processes.Process(target=s3_process.compact, args=(lake.path, through))
            process.start()
            while process.is_alive() and not trap.reached.wait(0.01):
                pass
            is_killed = trap.reached.is_set()
            if is_killed:
                process.kill()
            process.join(TIMEOUT)
            if trap.phase == LATE and publish == "manifest":
                with contextlib.suppress(SystemExit):
                    s3_process.compact(
                        lake.path, {**COMPACTION, "endpointUrl": lake.endpoint, "region": REGION}
                    )
            trap.release()
            proxy.wait_until_left()
            assert is_killed or process.exitcode == 0, trap
            check_exact(lake, publish, batch, trap)
            killed += is_killed
            if not is_killed:
                call = 0
            elif killed % 2:
                check_tidy(options, lake, publish, batch)
    check_tidy(options, lake, publish, batch)
    print(f"\n{name}, {publish}, {file_format}: {killed} kills, {batch} batches, each row once")


@pytest.mark.parametrize("seconds", [6, pytest.param(120, marks=pytest.mark.soak(seconds=120))])
def test_readers_see_whole_epochs_meanwhile(memory: Path, processes: Any, seconds: int) -> None:
    """One process writes, another one compacts over and over and is killed, and this one reads."""
    place = Directory(memory / "events")
    log = memory / "log"
    log.mkdir()
    options = place.options(fileFormat="jsonl", partitionBy="part", publish="symlink")
    compaction = {"targetFileSize": "64KiB", "replacedFileRetention": "5s"}
    chosen = random.Random(SEED)
    end = time.monotonic() + seconds
    reads = kills = gaps = 0
    with running(processes, s3_process.run, options, str(log), "run", 10**9) as writer:
        while not place.manifests():
            time.sleep(0.01)
        while time.monotonic() < end:
            until = time.monotonic() + chosen.uniform(0.3, 1.5)
            with running(processes, s3_process.compact, place.path, compaction, 0, True) as compactor:
                while time.monotonic() < until:
                    gaps += check_whole_epochs(place, log)
                    reads += 1
                assert writer.is_alive()
                assert compactor.is_alive()
            kills += 1
    batches = len(list(log.iterdir()))
    s3_process.write(options, "next run", batches)
    batches += committed(place).total() > (batches + 1) * EPOCH_ROWS  # was committed, and not logged
    check_tidy(options, place, "symlink", batches + 1)
    checkpoints = max(int(each.name[:20]) for each in place.root.glob("_sluice/_checkpoints/*.gz"))
    print(
        f"\n{batches} batches, {checkpoints} checkpoints, {kills} kills, {reads} reads, {gaps} with an epoch "
        "missing in symlinks"
    )


@contextlib.contextmanager
def running(processes: Any, *call: Any) -> Iterator[Any]:
    """A process that makes a call, and is killed in the end."""
    process = processes.Process(target=call[0], args=call[1:])
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(TIMEOUT)


def check_whole_epochs(place: Directory, log: Path) -> bool:
    """By manifests, all that was committed before; in each symlink manifest, whole epochs, each once. Returns
    whether an epoch is missing there.
    """
    before = len(list(log.iterdir()))
    found = committed(place)
    after = len(list(log.iterdir())) + 1
    epochs = len(found) // EPOCH_ROWS
    assert found == Counter(range(epochs * EPOCH_ROWS))
    assert before <= epochs <= after
    linked = by_symlinks(place)
    assert set(linked.values()) <= {1}
    parts = Counter((row // EPOCH_ROWS, row % 2) for row in linked)
    assert set(parts.values()) <= {EPOCH_ROWS // 2}
    return any((epoch, part) not in parts for epoch in range(before) for part in (0, 1))
