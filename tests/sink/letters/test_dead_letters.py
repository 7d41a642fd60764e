"""Dead letters: which records become one, what they hold, where they are, and when they are durable."""

from __future__ import annotations

import base64
import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_fakes import FakeConverter, FakeDestination, Outcome, config, rows

from sluice.errors import InvalidRecordError, OptionError, SluiceError
from sluice.sink import (
    AsyncSinkWriter,
    DeadLetter,
    NoRateLimitingStrategy,
    Rejection,
    SubmitResult,
)
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import (
    LocalDeadLetterQueue,
    dead_letter_file_name,
    dead_letter_line,
    dead_letter_of_entry,
    dead_letter_of_row,
)

ORIGIN = Origin("fake", query="q-1", run="r-1", batch=7, partition=3, attempt=9)


class MemoryQueue:
    """A queue in memory that counts flushed letters."""

    def __init__(self) -> None:
        self.dead_letters: list[DeadLetter] = []
        self.durable = 0
        self.closed = 0

    def add(self, dead_letter: DeadLetter) -> None:
        self.dead_letters.append(dead_letter)

    def flush(self) -> None:
        self.durable = len(self.dead_letters)

    def close(self) -> None:
        self.closed += 1

    @property
    def data(self) -> list[str]:
        return [(each.data or b"").decode() for each in self.dead_letters]


class Picky(FakeConverter):
    """Refuses rows that start with '!', after it has made entries of the rows before."""

    def convert(self, batch: pa.RecordBatch) -> Iterator[str]:
        for value in batch.column(0).to_pylist():
            if value.startswith("!"):
                raise InvalidRecordError("starts with an exclamation mark")
            yield value


def picky(behave: Any = None) -> FakeDestination:
    destination = FakeDestination(behave) if behave else FakeDestination()
    destination.converter = Picky()
    return destination


def write(
    destination: FakeDestination, values: Sequence[str], queue: Any, **changes: Any
) -> AsyncSinkWriter[str]:
    writer = AsyncSinkWriter(destination, config(**changes), NoRateLimitingStrategy(), dead_letters=queue)
    with closing(writer):
        writer.write(rows(values))
        writer.flush()
    return writer


def lines(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted(directory.rglob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


# --- which records become one ----------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["x", "!y"]), max_size=60))
def test_every_row_is_delivered_or_a_dead_letter(kinds: list[str]) -> None:
    """Each row once, wherever the invalid rows are, and however many."""
    destination, queue = picky(), MemoryQueue()
    values = [f"{kind}{n}" for n, kind in enumerate(kinds)]
    write(destination, values, queue)

    assert destination.stored == [value for value in values if value[0] == "x"]
    assert queue.data == [value for value in values if value[0] == "!"]


@pytest.mark.parametrize("queue", [None, MemoryQueue()])
def test_a_converter_that_returns_no_entries_is_named(queue: Any) -> None:
    """A mistake in a program, such as a missing return; no row is at fault."""

    class Forgetful(FakeConverter):
        def convert(self, batch: pa.RecordBatch) -> Any:
            self.converted += batch.num_rows

    destination = FakeDestination()
    destination.converter = Forgetful()
    with pytest.raises(
        TypeError, match=r"FakeDestination: the converter .*:.*Forgetful .*'elementConverter'.* NoneType"
    ):
        write(destination, ["a"], queue)


def test_an_invalid_row_fails_the_task_without_a_path() -> None:
    """Without deadLetterPath nothing is dropped."""
    with pytest.raises(InvalidRecordError, match="exclamation"):
        write(picky(), ["a", "!b"], None)


def test_records_that_are_too_large_become_dead_letters() -> None:
    """oversizedRecords=deadLetter: the reason has both sizes; the other records are delivered."""
    destination, queue = FakeDestination(), MemoryQueue()
    writer = write(
        destination,
        ["ok", "x" * 9, "fine"],
        queue,
        max_record_size_in_bytes=5,
        oversized_records="deadLetter",
    )

    assert destination.stored == ["ok", "fine"]
    assert queue.data == ["x" * 9]
    assert queue.dead_letters[0].reason == (
        "FakeDestination: a record of 9 bytes is larger than the limit of 5 bytes (maxRecordSizeInBytes)"
    )
    assert writer.figures.dead_letters == 1


def reject_b(_: int, entries: Sequence[str]) -> Outcome:
    return SubmitResult(
        failed=[entry for entry in entries if entry == "c"] if len(entries) > 1 else [],
        rejected=[Rejection(entry, "no b here") for entry in entries if entry == "b"],
    )


def test_rejected_entries_become_dead_letters() -> None:
    """Refused entries are sent again, and the others are acknowledged."""
    destination, queue = FakeDestination(reject_b), MemoryQueue()
    writer = write(destination, ["a", "b", "c"], queue)

    assert destination.requests == [["a", "b", "c"], ["c"]]
    assert [(each.reason, each.data) for each in queue.dead_letters] == [("no b here", b"b")]
    figures = writer.figures
    assert (figures.records, figures.bytes, figures.refused, figures.dead_letters) == (2, 2, 1, 1)


class OfMany(FakeDestination):
    """Each of its entries holds several of the user's records, separated by commas."""

    def records_in(self, entry: str) -> int:
        return len(entry.split(","))

    def unpacked(self, entry: str) -> list[str]:
        return entry.split(",")


@pytest.mark.parametrize("changes", [{}, {"oversized_records": "deadLetter", "max_record_size_in_bytes": 3}])
def test_each_record_of_an_entry_becomes_a_dead_letter(changes: dict[str, Any]) -> None:
    """Whether the destination rejects the entry, or it is too large."""

    def reject_many(_: int, entries: Sequence[str]) -> Outcome:
        return SubmitResult(rejected=[Rejection(each, "no") for each in entries if "," in each])

    destination, queue = OfMany(reject_many), MemoryQueue()
    writer = write(destination, ["a", "b,c,d", "e"], queue, **changes)

    assert queue.data == ["b", "c", "d"]
    assert (writer.figures.records, writer.figures.dead_letters) == (2, 3)


@pytest.mark.parametrize(
    ("queue", "changes", "hint"),
    [
        (None, {}, "no deadLetterPath is given"),
        (MemoryQueue(), {"fail_on_error": True}, "failOnError is true"),
    ],
)
def test_a_rejection_is_fatal_if_there_is_no_queue(queue: Any, changes: Any, hint: str) -> None:
    """Also with failOnError, which fails at the first refusal."""
    with pytest.raises(InvalidRecordError) as caught:
        write(FakeDestination(reject_b), ["a", "b"], queue, **changes)

    assert str(caught.value) == f"FakeDestination: 1 record was refused for good ({hint}): no b here"


def reject_exclamations(_: int, entries: Sequence[str]) -> Outcome:
    return SubmitResult(rejected=[Rejection(entry, f"no {entry}") for entry in entries if entry[0] == "!"])


@pytest.mark.parametrize("destination", [picky, lambda: FakeDestination(reject_exclamations)])
def test_a_task_whose_first_hundred_rows_are_refused_fails(destination: Any) -> None:
    """By the converter, or by the destination: the others would become dead letters, too."""
    queue = MemoryQueue()
    with pytest.raises(InvalidRecordError, match=r"the first 100 rows .* were all refused.*: (no !0|st)"):
        write(destination(), [f"!{n}" for n in range(1000)], queue)

    assert 100 <= len(queue.dead_letters) <= 300
    assert queue.durable == 0


@pytest.mark.parametrize("destination", [picky, lambda: FakeDestination(reject_exclamations)])
@pytest.mark.parametrize("accepted", [0, 99])
def test_one_row_that_is_accepted_is_enough(destination: Any, accepted: int) -> None:
    """Also if it waits to be sent while later rows are refused."""
    made, queue = destination(), MemoryQueue()
    values = [f"!{n}" for n in range(1000)]
    values[accepted] = "a"
    write(made, values, queue)

    assert len(queue.dead_letters) == queue.durable == 999


def test_fewer_rows_may_all_be_refused() -> None:
    """A small micro-batch may hold nothing else."""
    queue = MemoryQueue()
    write(picky(), ["!"] * 99, queue)

    assert len(queue.dead_letters) == queue.durable == 99


def test_a_queue_that_cannot_keep_a_dead_letter_fails_the_task() -> None:
    """A record that is neither delivered nor kept must not count as written."""

    class Full(MemoryQueue):
        def flush(self) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(picky(), ["!a"], Full())


def test_a_queue_that_fails_in_the_background_is_not_ignored() -> None:
    """What `add` raises on the background flusher's thread is raised by the next call."""

    class Broken(MemoryQueue):
        def add(self, dead_letter: DeadLetter) -> None:
            raise OSError(f"cannot keep it: {dead_letter.reason}")

    with pytest.raises(OSError, match="cannot keep it: no b here"):
        write(FakeDestination(reject_b), ["b"], Broken())


# --- what a dead letter holds -------------------------------------------------------------------------


class Named(NamedTuple):
    data: bytes
    partition_key: str
    explicit_hash_key: str | None = None


@dataclass
class Plain:
    number: int
    raw: bytes


@pytest.mark.parametrize(
    ("entry", "data", "attributes"),
    [
        (b"\x00\xff", b"\x00\xff", {}),
        ("grün", "grün".encode(), {}),
        (Named(b"x", "k"), b"x", {"partitionKey": "k"}),
        ({"Data": "x", "more": [1]}, b"x", {"more": [1]}),
        (Plain(1, b"a"), b'{"number": 1, "raw": "YQ=="}', {}),
        ([1, "two"], b'[1, "two"]', {}),
    ],
)
def test_an_entry_of_any_kind_is_kept(entry: object, data: bytes, attributes: dict[str, Any]) -> None:
    """The data are what would have been sent; other fields are attributes in camel case."""
    dead_letter = dead_letter_of_entry(entry, "why")

    assert (dead_letter.reason, dead_letter.data, dead_letter.attributes) == ("why", data, attributes)


def test_a_row_of_any_schema_is_kept() -> None:
    """The column data is the data, in any case; without one the whole row is, as JSON."""
    with_data = pa.record_batch({"DATA": [b"x"], "partitionKey": [""], "n": [None]})
    nothing = pa.record_batch({"data": pa.array([None], pa.binary())})
    other = pa.record_batch({"id": [1], "name": ["n"]})

    def letter(row: pa.RecordBatch) -> DeadLetter:
        return dead_letter_of_row(row, "r", data_is_sent=True)

    assert letter(with_data) == DeadLetter("r", b"x", {"partitionKey": ""})
    assert letter(nothing) == DeadLetter("r", None, {})
    assert letter(other) == DeadLetter("r", b'{"id": 1, "name": "n"}', form="row")


def test_only_the_destinations_own_converter_sends_data_as_it_is() -> None:
    """Not a converter in its place, nor one that does not accept a column data."""

    class Silent(Picky):
        data_column: Any = None

    def form(own: Picky, given: Picky | None) -> str:
        destination, queue = FakeDestination(), MemoryQueue()
        destination.converter = own
        writer = AsyncSinkWriter(
            destination, config(), NoRateLimitingStrategy(), dead_letters=queue, converter=given
        )
        with closing(writer):
            writer.write(rows(["!a"]))
            writer.flush()
        return queue.dead_letters[0].form

    assert form(Picky(), None) == "data"
    assert form(Silent(), None) == "row"
    assert form(Picky(), Picky()) == "row"


def test_a_dead_letter_is_one_line_of_json() -> None:
    """With reason, destination, query, epoch, task and the data in base64, for any content."""
    line = dead_letter_line(DeadLetter("two\nlines \ud800", b"\n\x00", {"k": b"\xff", "d": pa}), ORIGIN)
    found = json.loads(line)

    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert (found["reason"], found["destination"]) == ("two\nlines \ud800", "fake")
    assert (found["queryId"], found["batchId"], found["partition"], found["attempt"]) == ("q-1", 7, 3, 9)
    assert base64.b64decode(found["data"]) == b"\n\x00"
    assert found["attributes"]["k"] == "/w=="
    assert json.loads(dead_letter_line(DeadLetter("r", None), Origin("d")))["data"] is None


# --- where they are -----------------------------------------------------------------------------------


def test_file_names_differ_by_query_epoch_partition_attempt_and_run() -> None:
    """No two tasks write to one file, also after a restart, which counts attempts from 0 again."""
    origins = [
        ORIGIN,
        Origin("fake", query="q-2", run="r-1", batch=7, partition=3, attempt=9),
        Origin("fake", query="q-1", run="r-2", batch=7, partition=3, attempt=9),
        Origin("fake", query="q-1", run="r-1", batch=8, partition=3, attempt=9),
        Origin("fake", query="q-1", run="r-1", batch=7, partition=4, attempt=9),
        Origin("fake", query="q-1", run="r-1", batch=7, partition=3, attempt=10),
        Origin("fake", run="r-3"),
        Origin("fake"),
    ]

    assert dead_letter_file_name(ORIGIN, 0) == "q-1/batch-0000000007/part-00003-attempt-9-r-1-0000.jsonl"
    assert len({dead_letter_file_name(origin, n) for origin in origins for n in (0, 1)}) == 16
    assert dead_letter_file_name(Origin("d", run="../a b"), 0).startswith(".._a_b/batch/")


def test_files_appear_when_they_are_durable(tmp_path: Path) -> None:
    """Before the flush there is no *.jsonl; at the flush the file is synced first, then its directories."""
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)

    directory = tmp_path / "new" / "letters"
    queue = LocalDeadLetterQueue(directory, ORIGIN, sync=sync)
    queue.add(DeadLetter("r", b"1"))
    assert lines(tmp_path) == []
    queue.flush()

    assert [line["data"] for line in lines(directory)] == ["MQ=="]
    file = directory / dead_letter_file_name(ORIGIN, 0)
    paths = [file, file.parent, directory / "q-1", directory, tmp_path / "new"]
    assert synced == [path.stat().st_ino for path in paths]
    queue.add(DeadLetter("r", b"2"))
    queue.flush()
    queue.flush()
    assert [line["data"] for line in lines(directory)] == ["MQ==", "Mg=="]


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """What was not flushed is removed: the next attempt writes it again."""
    queue = LocalDeadLetterQueue(tmp_path, ORIGIN)
    queue.add(DeadLetter("r", b"1"))
    queue.close()
    queue.close()

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    """A file of the same name, complete or left by a killed writer, makes the queue take another name."""
    for data in (b"1", b"2"):
        queue = LocalDeadLetterQueue(tmp_path, ORIGIN)
        queue.add(DeadLetter("r", data))
        queue.flush()
    killed = LocalDeadLetterQueue(tmp_path, ORIGIN)
    killed.add(DeadLetter("r", b"lost"))
    last = LocalDeadLetterQueue(tmp_path, ORIGIN)
    last.add(DeadLetter("r", b"3"))
    last.flush()
    killed.close()

    assert [base64.b64decode(line["data"]) for line in lines(tmp_path)] == [b"1", b"2", b"3"]


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """Dead letters are not lost silently. The error has the option, the path and the system's reason."""
    (tmp_path / "file").write_text("")
    queue = LocalDeadLetterQueue(tmp_path / "file", ORIGIN)
    with pytest.raises(SluiceError, match=r"option 'deadLetterPath' is '.*file': .*\[Errno \d+\] Not a dir"):
        queue.add(DeadLetter("r", b"1"))


def test_a_file_that_cannot_be_made_durable_is_an_error(tmp_path: Path) -> None:
    """With the option and the path, too."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    queue = LocalDeadLetterQueue(tmp_path / "letters", ORIGIN, sync=full)
    queue.add(DeadLetter("r", b"1"))
    with pytest.raises(SluiceError, match=r"option 'deadLetterPath' is '.*letters': .*No space left"):
        queue.flush()
    queue.close()
    assert list(tmp_path.rglob("*.jsonl")) == []


@pytest.mark.parametrize("is_local", [True, False])
def test_a_directory_that_only_executors_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_local: bool
) -> None:
    """On a cluster the driver may lack a mount of the executors: it only warns."""

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    queue = LocalDeadLetterQueue(tmp_path / "not mounted here", ORIGIN)
    if is_local:
        with pytest.raises(OptionError, match=r"cannot be written there: .*Permission denied"):
            queue.check_writable(lambda: is_local)
    else:
        queue.check_writable(lambda: is_local)
        assert "the driver cannot write dead letters there" in caplog.text
