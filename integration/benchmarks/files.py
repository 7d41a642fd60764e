"""Files of a day of 10-second epochs, with and without compaction; `committed_files` after 100,000 epochs.

Epochs are written and committed as driver and tasks do it, without Spark, to a directory (in memory if
`/dev/shm` exists): two tasks, whose rows are of the hour of the epoch, and one in ten of the hour before. The
day is written twice, without and with `targetFileSize`; the first is then compacted in one go. Seconds are
CPU seconds of this process, the least of three runs, since a directory in memory waits for nothing.

For the second table no epoch is written: its manifests and its checkpoint are put by the code of the
destination, and list two files for each epoch that do not exist; or, compacted, one for each hour.

    python -m integration.benchmarks.files
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.types import LongType, StringType, StructField, StructType

import sluice
from integration.benchmarks.versus import write_table
from sluice.cli.app import main as command_line
from sluice.destinations import read_sink
from sluice.destinations.files.checkpoint import Checkpoint, FoldedEpochs, FoldedFile
from sluice.destinations.files.commits import put_checkpoint
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.manifest import Manifest, ManifestFile
from sluice.retry import patient
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

TASKS = 2
ROWS = 200  # of a task in an epoch
AN_HOUR = 360  # epochs
TARGET = "16MiB"
COUNTS = (1, 10, 1_000, 100_000)  # epochs
TURNS = 3
QUERY = "0b7a1d52-3c44-4c49-9d1c-2f6f0a6c8e11"
SCHEMA = StructType(
    [StructField("id", LongType()), StructField("text", StringType()), StructField("hour", LongType())]
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m integration.benchmarks.files", description=__doc__)
    parser.add_argument("--epochs", type=int, default=24 * AN_HOUR, help="of 10 seconds")
    epochs = parser.parse_args().epochs
    memory = Path("/dev/shm")  # noqa: S108 - as above
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=memory if memory.is_dir() else None) as made:
        lines = _day(Path(made), epochs)
        lines += ["", *_growth(Path(made))]
    write_table("files", lines)
    return 0


# --- a day --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """What readers find below a path; seconds are CPU seconds."""

    files: int  # committed ones
    there: int  # all data files, with those that stay for readers
    size: int  # of the committed ones
    committed: float  # seconds of `committed_files`
    walk: float  # of a listing with `os.walk`
    dataset: float  # of the one of pyarrow
    read: float  # of reading one column of all committed files
    rows: int


def _day(directory: Path, epochs: int) -> list[str]:
    title = f"{'':<26} {'files':>8} {'there':>8} {'MB':>7} {'ms an epoch':>12} {'committed_files':>16}"
    lines = [
        f"{epochs:,} epochs of {TASKS} tasks x {ROWS} rows; merged files of up to {TARGET}",
        f"{title} {'os.walk':>9} {'pyarrow':>9} {'read':>8}",
    ]
    ways = {"as written": {}, "merged while writing": {"targetFileSize": TARGET}}
    paths = {name: str(directory / name.replace(" ", "-")) for name in ways}
    writers = {name: _Writer(paths[name], more) for name, more in ways.items()}
    for epoch in range(epochs):  # in turns
        for writer in writers.values():
            writer.write(epoch)
    seen = {name: _see(path) for name, path in paths.items()}
    took = {name: writer.seconds / epochs * 1e3 for name, writer in writers.items()}
    lines += [_line(name, each, seen["as written"], f"{took[name]:.2f}") for name, each in seen.items()]
    start = time.process_time()
    for _ in range(2):  # the second deletes what the first has replaced
        arguments = ["--option", f"targetFileSize={TARGET}", "--option", "replacedFileRetention=0s"]
        command_line(["files", "compact", paths["as written"], *arguments], out=io.StringIO())
    seconds = time.process_time() - start
    after = _see(paths["as written"])
    lines.append(_line("compacted afterwards", after, seen["as written"], f"{seconds:.1f} s in all"))
    assert {each.rows for each in (*seen.values(), after)} == {epochs * TASKS * ROWS}
    return lines


class _Writer:
    """Driver and tasks of a query; `seconds`: CPU seconds so far."""

    def __init__(self, path: str, more: dict[str, str]) -> None:
        self._options = {"destination": "files", "path": path, "partitionBy": "hour", **more}
        self._options["replacedFileRetention"] = "0s"
        self._texts = np.array([f"{random.getrandbits(80):x}" for _ in range(ROWS)])
        self.seconds = 0.0

    def write(self, batch: int) -> None:
        start = time.process_time()
        staged: list[Any] = []
        for task in range(TASKS):
            destination: Any = read_sink(self._options).destination
            writer = destination.create_writer(SCHEMA, Origin("files", QUERY, "run", batch, task, batch))
            ids = np.arange(ROWS) + (batch * TASKS + task) * ROWS
            hours = np.full(ROWS, batch // AN_HOUR)
            if batch % 10 == 0 and batch >= AN_HOUR:
                hours[: ROWS // 10] -= 1
            writer.write(pa.RecordBatch.from_pydict({"id": ids, "text": self._texts, "hour": hours}))
            staged += writer.prepare_commit()
            writer.close()
        destination = read_sink(self._options).destination
        EpochCommit(destination, Epoch(QUERY, "run", batch), backoff=patient(60.0)).commit(staged)
        self.seconds += time.process_time() - start


def _see(path: str) -> _Seen:
    found = sluice.committed_files(path)
    return _Seen(
        len(found),
        len(list(Path(path).glob("hour=*/*"))),
        sum(Path(each).stat().st_size for each in found),
        _least(lambda: sluice.committed_files(path)),
        _least(lambda: [each for each in os.walk(path) if "_sluice" not in each[0]]),
        _least(lambda: ds.dataset(path, partitioning="hive").files),
        _least(lambda: ds.dataset(found, format="parquet").to_table(columns=["id"])),
        ds.dataset(found, format="parquet").count_rows(),
    )


def _line(name: str, seen: _Seen, first: _Seen, writing: str) -> str:
    def ratio(mine: float, theirs: float) -> str:
        return f"{mine:.3f}s" if seen is first else f"{mine / theirs:.2f}x"

    return (
        f"{name:<26} {seen.files:>8,} {seen.there:>8,} {seen.size / 1e6:>7.1f} {writing:>12} "
        f"{ratio(seen.committed, first.committed):>16} {ratio(seen.walk, first.walk):>9} "
        f"{ratio(seen.dataset, first.dataset):>9} {ratio(seen.read, first.read):>8}"
    )


# --- many epochs --------------------------------------------------------------------------------------


def _growth(directory: Path) -> list[str]:
    title = f"{'epochs':>8} {'way':<22} {'objects read':>13} {'files':>8} {'committed_files':>16}"
    lines = [f"{title}  times that of 1 epoch, of manifests"]
    after_one: dict[str, float] = {}
    for count in COUNTS:
        by_manifests: float | None = None
        for name, put in (("manifests", _manifests), ("folded", _folded), ("folded and merged", _merged)):
            path = str(directory / f"{name.replace(' ', '-')}-{count}")
            read = put(LocalStore(Path(path)), Layout(path), count)
            seconds = _least(lambda path=path: sluice.committed_files(path))  # type: ignore[misc]
            by_manifests = by_manifests or seconds
            first = after_one.setdefault(name, seconds)
            files = len(sluice.committed_files(path))
            lines.append(
                f"{count:>8,} {name:<22} {read:>13,} {files:>8,} {seconds:>15.4f}s  {seconds / first:>12.1f} "
                f"{seconds / by_manifests:>12.3f}"
            )
    return lines


def _manifest(epoch: int) -> Manifest:
    names = [f"part-{task:05}_{QUERY}_{epoch:020}_run_{epoch}_0000.snappy.parquet" for task in range(TASKS)]
    files = tuple(ManifestFile(f"hour={epoch // AN_HOUR}/{name}", ROWS, 20_000) for name in names)
    return Manifest(QUERY, epoch, "run", files, content=f"{epoch:064}")


def _manifests(store: LocalStore, layout: Layout, count: int) -> int:
    """Returns how many objects are read."""
    for epoch in range(count):
        store.put(layout.manifest(QUERY, epoch), _manifest(epoch).to_json())
    return count


def _folded(store: LocalStore, layout: Layout, count: int) -> int:
    each = [(file, epoch) for epoch in range(count - 1) for file in _manifest(epoch).files]
    return _put(store, layout, count, [FoldedFile(file.path, file.rows, file.size, at) for file, at in each])


def _merged(store: LocalStore, layout: Layout, count: int) -> int:
    hours = range(-(-(count - 1) // AN_HOUR))
    paths = [layout.compacted_file(f"hour={each}/", QUERY, 1, "run", "snappy.parquet") for each in hours]
    return _put(store, layout, count, [FoldedFile(path, AN_HOUR * ROWS, 7_000_000, 0) for path in paths])


def _put(store: LocalStore, layout: Layout, count: int, files: Sequence[FoldedFile]) -> int:
    """The newest manifest, and a checkpoint with the others, as a fold leaves them."""
    store.put(layout.manifest(QUERY, count - 1), _manifest(count - 1).to_json())
    if count == 1:
        return 1
    contents = {epoch: f"{epoch:064}" for epoch in range(max(0, count - 1001), count - 1)}
    queries = {QUERY: FoldedEpochs(((0, count - 2),), contents)}
    put_checkpoint(store, layout, Checkpoint(1, queries, tuple(files)))
    return 2


def _least(call: Callable[[], object]) -> float:
    """CPU seconds of the quickest run."""
    found = []
    for _ in range(TURNS):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


if __name__ == "__main__":
    sys.exit(main())
