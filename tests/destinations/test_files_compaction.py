"""Which files are merged, and what a checkpoint keeps."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet
import pytest
from fake_s3 import Crash, Inline
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sluice.destinations.files import FilesDestination, symlinks
from sluice.destinations.files.checkpoint import Checkpoint, FoldedEpochs, FoldedFile
from sluice.destinations.files.commits import find_epoch, put_checkpoint
from sluice.destinations.files.committed_files import list_committed
from sluice.destinations.files.compaction import find_merges
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.maintenance import Maintenance, Upkeep
from sluice.destinations.files.manifest import Manifest, ManifestFile
from sluice.destinations.files.retention import expire, sink_files
from sluice.destinations.files.symlinks import symlinked_urls
from sluice.destinations.files.writer import FileSettings
from sluice.errors import CommitError
from sluice.retry import Backoff
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

HOUR = 3600.0
NOW = 1_800_000_000.0
IDS = StructType([StructField("id", LongType())])
WIDER = StructType([StructField("id", LongType()), StructField("name", StringType())])


class Sink:
    """A directory that epochs are written to, and that is maintained."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.layout = Layout(str(root))
        self.store = LocalStore(root)
        self.root = root
        self.settings = FileSettings(**settings)

    def write(self, epoch: Epoch, rows: pa.RecordBatch, schema: StructType = IDS) -> None:
        made = FilesDestination(self.layout, self.store, self.settings, executor=Inline)
        writer = made.create_writer(schema, Origin("files", epoch.query, epoch.run, epoch.batch, 0, 1))
        writer.write(rows)
        backoff = Backoff(max_retries=0, base=0.0, max=0.0, exponent=1.0)
        EpochCommit(made, epoch, backoff=backoff).commit(writer.prepare_commit())
        writer.close()

    def write_each(self, *ids: int) -> None:
        """A batch for each id."""
        for number in ids:
            self.write(Epoch("q", "r", number), pa.RecordBatch.from_pydict({"id": [number]}))

    def maintain(self, target: int | None = 10**6, now: float = NOW) -> Upkeep:
        return self.maintenance(target, now).run()

    def maintenance(self, target: int | None = 10**6, now: float = NOW) -> Maintenance:
        return Maintenance(
            self.store, self.layout, target=target, retention=HOUR, executor=Inline, now=lambda: now
        )

    def committed(self) -> list[str]:
        return [path.removeprefix(f"{self.root}/") for path in list_committed(str(self.root), "s3", {})]

    def linked(self) -> list[str]:
        """The files in the symlink manifest, without partitions."""
        lines = (self.root / "_symlink_format_manifest" / "manifest").read_text().split()
        return [line.removeprefix(f"file://{self.root}/") for line in lines]

    def ids(self) -> list[int]:
        paths = [f"{self.root}/{path}" for path in self.committed()]
        return sorted(ds.dataset(paths, format="parquet").to_table()["id"].to_pylist()) if paths else []


def files(*sizes: int, query: str = "q", directory: str = "") -> list[FoldedFile]:
    names = (f"{directory}part-00000_{query}_{n:020}_r_0_0000.parquet" for n in range(len(sizes)))
    return [FoldedFile(name, 1, size, 0) for name, size in zip(names, sizes, strict=True)]


def merged(found: list[FoldedFile], target: int = 100) -> list[list[int]]:
    merges = find_merges(Layout("/x"), found, target)
    return [[file.size for file in each.files] for each in merges]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10], []),
        ([10, 10], [[10, 10]]),
        ([30, 10], []),  # waits until as much has come after it
        ([30, 10, 10], [[10, 10]]),
        ([30, 10, 10, 10], [[30, 10, 10, 10]]),
        ([60, 10, 10, 60, 10], [[10, 10]]),  # no file is moved past another one that is large enough
        ([40, 40, 40, 40], [[40, 40], [40, 40]]),
        ([0, 0, 0], [[0, 0, 0]]),
        ([200, 200], []),
    ],
)
def test_neighbours_are_merged_up_to_the_target(sizes: list[int], expected: list[list[int]]) -> None:
    assert merged(files(*sizes)) == expected


def test_files_of_other_partitions_queries_and_formats_stay_apart() -> None:
    """Files of several batch writes are not merged: each write is a separate query."""
    mixed = files(1, directory="day=1/") + files(1, directory="day=2/") + files(1, query="other")
    mixed += [FoldedFile("part-00000_q_00000000000000000009_r_0_0000.jsonl", 1, 1, 0)]
    mixed += [FoldedFile("of-the-user.parquet", 1, 1, 0)] * 2

    assert merged(mixed) == []
    assert merged(files(1, query="write-a") + files(2, query="write-b")) == [[1, 2]]


@given(sizes=st.lists(st.integers(1, 60), max_size=60), target=st.integers(20, 200))
def test_a_row_is_rewritten_as_often_as_its_file_doubles(sizes: list[int], target: int) -> None:
    """In any order of files, the written bytes are at most the input times the logarithm of the target."""
    state: list[FoldedFile] = []
    written = 0
    for number, file in enumerate(files(*sizes)):
        state.append(file)
        for found in find_merges(Layout("/x"), state, target):
            size = sum(each.size for each in found.files)
            written += size
            assert size <= target
            at = state.index(found.files[0])
            name = Layout("/x").compacted_file("", "q", number, "r", "parquet")
            state[at : at + len(found.files)] = [FoldedFile(name, 1, size, 0)]
    assert sum(each.size for each in state) == sum(sizes)
    assert written <= sum(sizes) * target.bit_length()


def test_merged_files_have_the_rows_of_the_others_which_stay_for_a_while(tmp_path: Path) -> None:
    """For those who have listed them."""
    sink = Sink(tmp_path)
    sink.write_each(*range(5))
    before = sink.committed()

    done = sink.maintain()

    assert done == Upkeep(folded=4, merged=4, made=1)
    assert sink.ids() == list(range(5))
    assert len(sink.committed()) == 2
    assert all((tmp_path / path).exists() for path in before)
    assert sink.maintain(now=NOW + HOUR - 1) == Upkeep()
    assert sink.maintain(now=NOW + HOUR + 1) == Upkeep(deleted=4)
    assert not any((tmp_path / path).exists() for path in before[:4])
    assert sink.ids() == list(range(5))
    assert [path.name for path in (tmp_path / "_sluice/q").glob("*.json")] == ["00000000000000000004.json"]
    assert len(list((tmp_path / "_sluice/_checkpoints").glob("*.gz"))) == 1


def test_every_type_is_as_before(tmp_path: Path) -> None:
    """Types, nulls and the metadata by which Spark tells the calendar of old dates."""
    schema = StructType(
        [
            StructField("at", TimestampType()),
            StructField("price", DecimalType(38, 10)),
            StructField("tags", ArrayType(StructType([StructField("n", LongType())]))),
            StructField("none", StringType()),
        ]
    )
    arrow = pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(38, 10)),
            ("tags", pa.list_(pa.struct([("n", pa.int64())]))),
            ("none", pa.string()),
        ]
    )
    early = dt.datetime(1400, 1, 1, tzinfo=dt.timezone.utc)
    rows = [
        {"at": early, "price": Decimal("0.0000000001"), "tags": [{"n": 1}, {"n": None}], "none": None},
        {"at": None, "price": None, "tags": None, "none": None},
    ]
    sink = Sink(tmp_path)
    for number in range(4):
        sink.write(Epoch("q", "r", number), pa.RecordBatch.from_pylist(rows, arrow), schema)

    assert sink.maintain().made == 1

    compacted, last = sink.committed()
    first, second = (pa.parquet.read_table(tmp_path / path) for path in (compacted, last))
    assert first.to_pylist() == rows * 3
    assert first.schema.equals(second.schema, check_metadata=True)
    metadata = [pa.parquet.read_metadata(tmp_path / path).metadata for path in (compacted, last)]
    assert metadata[0].keys() == metadata[1].keys()


def test_files_with_other_columns_stay_apart(tmp_path: Path) -> None:
    """A query was started again with another schema: both halves are merged."""
    sink = Sink(tmp_path)
    sink.write_each(0, 1)
    for number in range(2, 5):
        rows = pa.RecordBatch.from_pydict({"id": [number], "name": ["x"]})
        sink.write(Epoch("q", "r", number), rows, WIDER)

    assert sink.maintain() == Upkeep(folded=4, merged=4, made=2)
    assert sink.ids() == list(range(5))
    assert sink.maintain().made == 0


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_lines_are_merged(tmp_path: Path, compression: str) -> None:
    sink = Sink(tmp_path, file_format="jsonl", compression=compression)
    sink.write_each(*range(4))

    assert sink.maintain().made == 1

    bodies = [(tmp_path / path).read_bytes() for path in sink.committed()]
    lines = [gzip.decompress(body) if compression == "gzip" else body for body in bodies]
    assert b"".join(lines) == b'{"id":0}\n{"id":1}\n{"id":2}\n{"id":3}\n'


@pytest.mark.parametrize("damage", [b"", b"no parquet", None])
def test_a_file_that_cannot_be_merged_holds_up_no_other(tmp_path: Path, damage: bytes | None) -> None:
    """The rest is folded and merged, and the reason is reported."""
    sink = Sink(tmp_path, partition_by=("part",))
    schema = StructType([StructField("id", LongType()), StructField("part", LongType())])
    for number in range(4):
        rows = pa.RecordBatch.from_pydict({"id": [number, number], "part": [0, 1]})
        sink.write(Epoch("q", "r", number), rows, schema)
    damaged = tmp_path / sink.committed()[0]
    damaged.unlink() if damage is None else damaged.write_bytes(damage)

    done = sink.maintain()

    assert (done.folded, done.made, len(done.failures)) == (3, 1, 1)
    assert "3 files of part=0/: " in done.failures[0]
    assert len(sink.committed()) == 3 + 1 + 2
    assert not list(tmp_path.glob("_sluice/staging/*"))
    assert not list(tmp_path.glob("_sluice/_checkpoints/pending/*"))


def test_a_file_with_other_rows_than_it_was_committed_with_is_not_merged(tmp_path: Path) -> None:
    sink = Sink(tmp_path, file_format="jsonl", compression="none")
    sink.write_each(*range(3))
    (tmp_path / sink.committed()[0]).write_bytes(b"")

    assert "has 0 rows, and was committed with 1" in sink.maintain().failures[0]


def test_files_that_readers_list_are_folded_and_not_merged(tmp_path: Path) -> None:
    """Also if they were written with ``visible`` once, and folded since."""
    sink = Sink(tmp_path, publish="visible")
    sink.write_each(0, 1)
    assert sink.maintain(target=None).folded == 1
    sink.settings = FileSettings()
    sink.write_each(2, 3)

    done = sink.maintain()

    assert (done.folded, done.made) == (2, 0)
    assert "'publish' visible" in done.failures[0]


def test_batch_writes_are_folded_and_merged(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    for number in range(3):
        sink.write(Epoch(None, f"w{number}", None), pa.RecordBatch.from_pydict({"id": [number]}))
    sink.write(Epoch("app", "w4", 7, is_transaction=True), pa.RecordBatch.from_pydict({"id": [7]}))
    sink.write(Epoch("app", "w5", 3, is_transaction=True), pa.RecordBatch.from_pydict({"id": [3]}))

    assert sink.maintain() == Upkeep(folded=4, merged=3, made=1)
    assert sink.ids() == [0, 1, 2, 3, 7]
    # A version that is folded is not written again.
    sink.write(Epoch("app", "w6", 3, is_transaction=True), pa.RecordBatch.from_pydict({"id": [3]}))
    assert sink.ids() == [0, 1, 2, 3, 7]


def test_a_folded_batch_with_other_contents_is_refused(tmp_path: Path) -> None:
    """As with its manifest: the checkpoint of the query is older than the committed batches."""
    sink = Sink(tmp_path)
    for number in range(3):
        epoch = Epoch("q", "r", number, content=f"offsets {number}")
        sink.write(epoch, pa.RecordBatch.from_pydict({"id": [number]}))
    sink.maintain()

    again = pa.RecordBatch.from_pydict({"id": [1]})
    sink.write(Epoch("q", "r2", 1, content="offsets 1"), again)
    with pytest.raises(CommitError, match="other contents"):
        sink.write(Epoch("q", "r3", 1, content="offsets x"), again)
    assert sink.ids() == [0, 1, 2]


def manifest(batch: int, content: str | None) -> Manifest:
    return Manifest("q", batch, "r", (ManifestFile(f"{batch}", 1, 1),), content)


def test_a_checkpoint_does_not_grow_with_the_number_of_epochs() -> None:
    """Of a long past batch it is known that it was committed, and no more: its repetition is refused."""
    many = Checkpoint(1)
    for start in range(0, 10_000, 100):
        batch = [(manifest(number, f"{number}"), 0) for number in range(start, start + 100)]
        many = many.with_epochs(batch).without({f"{number}" for number in range(start, start + 100)})
        many = many.without_replaced({each.path for each in many.replaced})
    read = Checkpoint.from_bytes(many.to_bytes(), 1, "key")

    assert read == many
    assert read.queries["q"].ranges == ((0, 9999),)
    assert len(read.queries["q"].contents) == 1000
    assert len(read.to_bytes()) < 10_000
    recent, past, missing = read.epoch("q", 9999), read.epoch("q", 5), read.epoch("q", 10_000)
    assert recent == Manifest("q", 9999, "", (), "9999")
    assert past is not None
    assert past.content not in (None, "5")
    assert missing is None


def test_no_damage_raises_another_error() -> None:
    body = Checkpoint(1).with_epochs([(manifest(0, "x"), 0)]).to_bytes()
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 0xFF
        with contextlib.suppress(CommitError):
            Checkpoint.from_bytes(bytes(damaged), 1, "key")


@given(st.lists(st.integers(0, 30), max_size=30))
def test_ranges_have_what_was_folded(batches: list[int]) -> None:
    folded = FoldedEpochs()
    for batch in batches:
        folded = folded.with_epochs([manifest(batch, None)])

    assert [batch for batch in range(32) if batch in folded] == sorted(set(batches))
    assert all(second[0] > first[1] + 1 for first, second in pairwise(folded.ranges))


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", gzip.compress(b"{}", mtime=0), gzip.compress(b'{"version": 2}', mtime=0)],
    ids=["empty", "plain", "incomplete", "version 2"],
)
def test_a_damaged_checkpoint_is_an_error(tmp_path: Path, body: bytes) -> None:
    """Otherwise its files would be missing from the committed ones."""
    sink = Sink(tmp_path)
    sink.write_each(0, 1)
    sink.maintain()
    (found,) = (tmp_path / "_sluice/_checkpoints").glob("*.gz")
    found.write_bytes(body)

    with pytest.raises(CommitError, match=r"checkpoint .* (is damaged|has version 2)"):
        sink.committed()


def test_folded_epochs_expire_by_the_time_when_they_were_committed(tmp_path: Path) -> None:
    sink = Sink(tmp_path)
    sink.write_each(*range(6))
    sink.maintain(target=None)
    listed = sink_files(sink.store, sink.layout).epochs
    assert [(each.batch, each.rows) for each in listed] == [(number, 1) for number in range(6)]

    assert expire(sink.store, sink.layout, [listed[1], listed[5]]) == 2

    assert sink.ids() == [0, 2, 3, 4]
    sink.maintain()
    merged, last = sink_files(sink.store, sink.layout).epochs
    assert (merged.batch, merged.rows, merged.committed) == (None, 4, listed[4].committed)
    assert (last.batch, last.files) == (5, ())
    assert len(sink_files(sink.store, sink.layout).replaced) == 4
    assert expire(sink.store, sink.layout, [merged]) == 1
    assert sink.ids() == []
    sink.write_each(1)  # is committed still
    assert Counter(sink.ids()) == Counter()


def while_it_merges(slow: Maintenance, others: Callable[[], None]) -> None:
    """Other processes do something between the merging and the put of the checkpoint, once."""
    put = slow._store.put_if_absent

    def late(key: str, body: bytes) -> bool:
        slow._store.put_if_absent = put  # type: ignore[method-assign]
        others()
        return put(key, body)

    slow._store.put_if_absent = late  # type: ignore[method-assign]


def test_a_slow_fold_does_not_put_a_number_again(tmp_path: Path) -> None:
    """Two removals while it merges: number 2 was put, and is free again since there is a number 3."""
    sink = Sink(tmp_path)
    sink.write_each(*range(3))
    sink.maintain(target=None)
    sink.write_each(*range(3, 9))

    def expire_twice() -> None:
        other = LocalStore(tmp_path)
        for batch in (0, 1):
            old = [each for each in sink_files(other, sink.layout).epochs if each.batch == batch]
            assert expire(other, sink.layout, old) == 1

    slow = sink.maintenance()
    while_it_merges(slow, expire_twice)
    slow.run()

    assert sink.ids() == list(range(2, 9))


def test_a_slow_compaction_deletes_nothing_that_a_faster_one_has_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster one is killed when it has put its checkpoint; what it noted stays for an hour."""
    sink = Sink(tmp_path)
    sink.write_each(*range(5))

    class KilledError(BaseException):
        pass

    def put_and_die(*given: Any) -> bool:
        assert put_checkpoint(*given)
        raise KilledError

    def others() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("sluice.destinations.files.maintenance.put_checkpoint", put_and_die)
            with pytest.raises(KilledError):
                Sink(tmp_path).maintain()
        Sink(tmp_path).write_each(*range(5, 8))
        Sink(tmp_path).maintain(target=None)

    slow = sink.maintenance()
    while_it_merges(slow, others)
    slow.run()

    assert sink.ids() == list(range(8))


@pytest.mark.parametrize("reads", ["committed_files", "find_epoch"])
def test_a_directory_shows_a_checkpoint_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """Its names are read; then the next checkpoint replaces the one in it; then that one is opened."""
    sink = Sink(tmp_path)
    sink.write_each(*range(5))
    sink.maintain(target=None)
    walk, armed = os.walk, [True]

    def slow_walk(top: Any, **named: Any) -> Iterator[Any]:
        for found in walk(top, **named):
            if armed and str(top).endswith("_checkpoints"):
                armed.clear()
                Sink(tmp_path).maintain()
            yield found

    monkeypatch.setattr(os, "walk", slow_walk)

    if reads == "find_epoch":
        assert find_epoch(sink.store, sink.layout, "q", 1) is not None
    else:
        assert sink.ids() == list(range(5))
    assert not armed


def test_a_late_manifest_of_a_folded_batch_commits_nothing(tmp_path: Path) -> None:
    """A driver that was slow for ten batches; then the query's checkpoint is restored."""
    sink = Sink(tmp_path, publish="symlink")
    sink.write_each(*range(4))
    body = (tmp_path / sink.layout.manifest("q", 1)).read_bytes()
    sink.maintain()
    (tmp_path / sink.layout.manifest("q", 1)).write_bytes(body.replace(b"_r_", b"_other_"))

    sink.write_each(1)

    assert sink.ids() == list(range(4))
    assert symlinked_urls(sink.store, sink.layout) == {
        f"file://{tmp_path}/{each}" for each in sink.committed()
    }


def test_what_was_merged_meanwhile_does_not_expire(tmp_path: Path) -> None:
    """The rows would stay, in the merged file."""
    sink = Sink(tmp_path)
    sink.write_each(*range(5))
    sink.maintain(target=None)
    listed = sink_files(sink.store, sink.layout).epochs
    sink.maintain()

    with pytest.raises(CommitError, match="merged meanwhile"):
        expire(sink.store, sink.layout, listed[1:2])
    assert sink.ids() == list(range(5))


def test_what_expires_while_it_is_folded_stays_expired(tmp_path: Path) -> None:
    """The fold has read the manifests before they were emptied: it begins anew."""
    sink = Sink(tmp_path)
    sink.write_each(*range(4))
    listed = sink_files(sink.store, sink.layout).epochs

    def expire_two() -> None:
        assert expire(LocalStore(tmp_path), sink.layout, listed[:2]) == 2

    slow = sink.maintenance()
    while_it_merges(slow, expire_two)
    slow.run()

    assert sink.ids() == [2, 3]
    assert all((tmp_path / path).exists() for path in sink.committed())


@pytest.mark.parametrize("target", [None, 10**6])
def test_a_compaction_that_dies_hides_no_batch_from_readers_of_symlinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: int | None
) -> None:
    """A batch is committed while the lists are rebuilt, and is missing in the last list that was put."""
    sink, put = Sink(tmp_path, publish="symlink"), symlinks._put
    sink.write_each(0, 1, 2)

    def late(store: LocalStore, key: str, urls: Any) -> None:
        monkeypatch.setattr(symlinks, "_put", put)
        sink.write_each(3)
        put(store, key, urls)
        raise Crash

    monkeypatch.setattr(symlinks, "_put", late)
    with contextlib.suppress(Crash):
        sink.maintain(target)
    monkeypatch.setattr(symlinks, "_put", put)
    sink.write_each(4)

    assert sorted(sink.linked()) == sorted(sink.committed())


def test_readers_of_symlinks_get_the_merged_files(tmp_path: Path) -> None:
    sink = Sink(tmp_path, publish="symlink")
    sink.write_each(0, 1, 2)
    assert sink.maintain().merged == 2
    assert sorted(sink.linked()) == sorted(sink.committed())
