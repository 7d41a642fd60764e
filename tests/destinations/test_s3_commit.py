"""Destination s3, the driver's side: options, manifests, the sweep, and what S3 may answer."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from fake_s3 import CONNECTION, PATH, FakeS3, destination, files, refusal, retrier, rows
from pyspark.sql.types import LongType, StructField, StructType

import sluice
from sluice.destinations import read_sink
from sluice.destinations.s3 import S3Destination
from sluice.destinations.s3.bucket import Store
from sluice.errors import CommitError, OptionError, ServiceError
from sluice.sink import Epoch, Origin
from sluice.sink.committing import EpochCommit

SCHEMA = StructType([StructField("id", LongType())])
S3 = {"destination": "s3", "path": PATH, "region": "eu-west-1"}


def prepared(s3: FakeS3, epoch: Epoch, *ids: int, attempt: int = 0) -> list[Any]:
    origin = Origin("s3", epoch.query, epoch.run, epoch.batch, 0, attempt)
    task = destination(s3).create_writer(SCHEMA, origin)
    if ids:
        task.write(pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())}))
    uploads = pickle.loads(pickle.dumps(task.prepare_commit()))
    task.close()
    return list(uploads)


def commit(s3: FakeS3, epoch: Epoch) -> EpochCommit:
    return EpochCommit(destination(s3), epoch, retrier=retrier())


def ids(s3: FakeS3) -> list[int]:
    return [row["id"] for row in rows(s3)]


def broken(*kinds: str | Exception | None, at: str) -> Any:
    """Faults, one after the other, at calls of one operation."""
    left = list(kinds)
    return lambda _number, operation: left.pop(0) if operation == at and left else None


def test_options_make_the_settings() -> None:
    """In any case; the compression follows the format."""
    plain: Any = read_sink(S3).destination
    made: Any = read_sink(
        S3 | {"FILEFORMAT": "JSONL", "partitionby": "a , b", "maxFileSize": "64MiB", "maxOpenFiles": "3"}
    ).destination

    assert isinstance(plain, S3Destination)
    assert (plain._settings.file_format, plain._settings.compression) == ("parquet", "snappy")
    assert (made._settings.file_format, made._settings.compression) == ("jsonl", "none")
    assert made._settings.partition_by == ("a", "b")
    assert (made._settings.max_file_size, made._settings.max_open_files) == (64 * 2**20, 3)
    assert plain.name == f"s3 path '{PATH}'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "lake/events"}, "option 'path' is 'lake/events': allowed is s3://bucket/prefix"),
        ({"path": "s3://lake/{a}"}, "option 'path' is"),
        ({"path": "s3://lake//a"}, "option 'path' is"),
        ({"fileFormat": "csv"}, "option 'fileFormat' is 'csv': allowed is one of parquet, jsonl"),
        ({"partitionBy": "a,,b"}, "option 'partitionBy' is 'a,,b'"),
        ({"fileFormat": "jsonl", "compression": "zstd"}, "allowed with jsonl are none, gzip"),
        ({"maxFileSize": "1MiB"}, "option 'maxFileSize' is '1MiB': allowed is a size of at least 8388608"),
        ({"maxFileSize": "100000000000"}, "at most 67108864000"),
        ({"fileFormt": "jsonl"}, "did you mean 'fileFormat'"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], message: str) -> None:
    """Before anything runs."""
    with pytest.raises(OptionError) as caught:
        read_sink(S3 | options)

    assert message in str(caught.value)


def test_the_path_is_required() -> None:
    """Although Spark has an option of this name of its own."""
    with pytest.raises(OptionError, match="option 'path' is required"):
        read_sink({"destination": "s3", "region": "eu-west-1"})


def test_the_manifest_of_an_epoch() -> None:
    """Under query and batch id; the run, and each file with its rows and bytes, below the path."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 7)
    commit(s3, epoch).commit(prepared(s3, epoch, 1, 2) + prepared(s3, epoch, 3, attempt=1))
    (key,) = set(s3.objects) - s3.data
    manifest = json.loads(s3.objects[key])

    assert key == "events/_sluice/q/00000000000000000007.json"
    assert (manifest["version"], manifest["query"], manifest["batch"], manifest["run"]) == (1, "q", 7, "r")
    assert manifest["rows"] == 3
    name = "part-00000_q_00000000000000000007_r_{}_0000.jsonl"
    assert manifest["files"] == [
        {"path": name.format(0), "rows": 2, "bytes": 18},
        {"path": name.format(1), "rows": 1, "bytes": 9},
    ]


def test_nothing_counts_before_the_manifest() -> None:
    """Completed objects neither; after it all do."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1)
    made = destination(s3)
    assert files(s3) == []
    made.create_committer(epoch).commit(uploads)
    assert len(s3.data) == 1
    assert files(s3) == []
    sealing = made.create_global_committer(epoch)
    sealing.commit([sealing.combine(uploads)])

    assert ids(s3) == [1]


def test_a_batch_that_comes_again_is_recognised() -> None:
    """From a new run with new uploads: those are aborted."""
    s3 = FakeS3()
    first, second = Epoch("q", "r1", 0), Epoch("q", "r2", 0)
    assert commit(s3, first).commit(prepared(s3, first, 1, 2))
    assert not commit(s3, second).commit(prepared(s3, second, 1, 2))

    assert ids(s3) == [1, 2]
    assert s3.uploads == {}
    assert s3.data == set(files(s3))


@pytest.mark.parametrize(
    "arrives", ["at once", "before the abort", "before the restart", "in the next commit", "at the end"]
)
def test_a_manifest_that_was_given_up_and_arrives_all_the_same(arrives: str) -> None:
    """The request was sent, no answer came, the commit failed and was aborted. Whenever it arrives, before or
    after the next run has committed the batch, its files are there or the other ones count.
    """
    s3 = FakeS3(delay=10**9)
    first, second = Epoch("q", "r1", 0), Epoch("q", "r2", 0)
    uploads = prepared(s3, first, 1, 2)
    outage = [refusal("SlowDown", 503)] * 99
    s3.fault = broken(None, "lost" if arrives == "at once" else "late", *outage, at="put_object")
    with pytest.raises(CommitError, match="batch 0 could not be committed after 8 attempts: PutObject"):
        commit(s3, first).commit(uploads)
    s3.fault = lambda _number, _operation: None
    if arrives == "before the abort":
        s3.settle()
    commit(s3, first).abort(uploads)
    if arrives == "before the restart":
        s3.settle()
    again = prepared(s3, second, 1, 2)
    if arrives == "in the next commit":
        s3.settle(calls=3)
    commit(s3, second).commit(again)
    s3.settle()
    third = Epoch("q", "r2", 1)
    commit(s3, third).commit(prepared(s3, third, 3))

    assert ids(s3) == [1, 2, 3]
    assert any("_r2_" in key for key in files(s3)[:1]) == (arrives == "at the end")
    assert s3.data == set(files(s3))
    assert s3.uploads == {}
    assert s3.pending == set()


def test_an_abort_never_removes_what_may_be_listed() -> None:
    """A commit that went through although Spark was told otherwise: its files stay, and count."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1)
    commit(s3, epoch).commit(uploads)
    commit(s3, epoch).abort(uploads)
    commit(s3, epoch).abort(uploads)

    assert ids(s3) == [1]


def test_two_runs_at_once_commit_one_of_them() -> None:
    """A driver that is cut off, and its successor, in the same batch: the first manifest counts."""
    s3 = FakeS3()
    old, new = Epoch("q", "r1", 0), Epoch("q", "r2", 0)
    uploads = {epoch.run: prepared(s3, epoch, 1, 2) for epoch in (old, new)}
    for epoch in (old, new):
        destination(s3).create_committer(epoch).commit(uploads[epoch.run])
    for epoch in (new, old):
        sealing = destination(s3).create_global_committer(epoch)
        sealing.commit([sealing.combine(uploads[epoch.run])])
        destination(s3).clean_up(epoch, committed=True)

    assert ids(s3) == [1, 2]
    assert all("_r2_" in key for key in s3.data)
    assert s3.pending == set()


def test_the_sweep_takes_only_its_own() -> None:
    """Not another query's uploads, not those of a later batch, not anybody else's; nor their objects."""
    s3 = FakeS3()
    kept = [
        prepared(s3, Epoch("other", "r", 0), 1),
        prepared(s3, Epoch("q", "r0", 8), 2),
        prepared(s3, Epoch(None, "w", None), 3),
    ]
    swept = [
        prepared(s3, Epoch("q", "r0", 6), 4),
        prepared(s3, Epoch("q", "r0", 7), 5),
        prepared(s3, Epoch("q", "r1", 7), 6, attempt=5),
    ]
    foreign = s3.create_multipart_upload(Bucket="lake", Key="events/x%y.jsonl", ContentType="x")["UploadId"]
    s3.objects["events/part-00000_q_00000000000000000003_r0_0_0000.jsonl"] = b"{}"
    epoch = Epoch("q", "r1", 7)
    commit(s3, epoch).commit(prepared(s3, epoch, 7))

    assert set(s3.uploads) == {foreign, *(each[0].upload for each in kept)}
    assert not any(each[0].upload in s3.uploads for each in swept)
    # What no note names is not the sink's to remove, whatever its name.
    assert "events/part-00000_q_00000000000000000003_r0_0_0000.jsonl" in s3.objects
    assert ids(s3) == [7]


def test_a_sweep_that_is_refused_is_made_up_for_later() -> None:
    """The commit stands; the next one removes what is left."""
    s3 = FakeS3()
    first, second = Epoch("q", "r1", 0), Epoch("q", "r1", 1)
    orphan = prepared(s3, first, 1, attempt=3)
    s3.fault = lambda _number, operation: (
        refusal("AccessDenied", 403) if operation == "list_multipart_uploads" else None
    )
    assert commit(s3, first).commit(prepared(s3, first, 1))
    assert orphan[0].upload in s3.uploads
    s3.fault = lambda _number, _operation: None
    commit(s3, second).commit(prepared(s3, second, 2))

    assert s3.uploads == {}
    assert s3.pending == set()
    assert ids(s3) == [1, 2]


def test_an_upload_that_is_gone_fails_the_commit_with_its_key() -> None:
    """Aborted by a rule of the bucket, say. Nothing of the epoch counts."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1) + prepared(s3, epoch, 2, attempt=1)
    del s3.uploads[uploads[1].upload]
    with pytest.raises(CommitError, match=r"CompleteMultipartUpload of s3://lake/events/part.*NoSuchUpload"):
        commit(s3, epoch).commit(uploads)

    assert files(s3) == []


def test_nothing_more_is_begun_after_a_failure() -> None:
    """With S3 out and thousands of uploads, each would be tried for a while before the reason is told."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1) + prepared(s3, epoch, 2, attempt=1)
    s3.fault = broken(refusal("AccessDenied", 403), at="complete_multipart_upload")
    with pytest.raises(CommitError, match="AccessDenied"):
        commit(s3, epoch).commit(uploads)

    assert [name for name, _ in s3.calls].count("complete_multipart_upload") == 1


def test_what_is_completed_is_not_completed_again() -> None:
    """When others have to be tried again."""
    s3 = FakeS3()
    epoch = Epoch("q", "r", 0)
    uploads = prepared(s3, epoch, 1) + prepared(s3, epoch, 2, attempt=1)
    left = 7

    def fault(_number: int, operation: str) -> Any:
        nonlocal left
        if operation == "complete_multipart_upload" and s3.data and left:
            left -= 1
            return refusal("SlowDown", 503)
        return None

    s3.fault = fault
    commit(s3, epoch).commit(uploads)

    assert [name for name, _ in s3.calls].count("complete_multipart_upload") == 1 + 7 + 1
    assert ids(s3) == [1, 2]


@pytest.mark.parametrize("arrives", ["before the abort", "at the end"])
def test_a_failed_batch_write_can_never_count(arrives: str) -> None:
    """Its manifest was sent, and comes when all is removed: an empty one is there."""
    s3 = FakeS3(delay=10**9)
    epoch = Epoch(None, "w", None)
    uploads = prepared(s3, epoch, 1)
    s3.fault = broken(None, "late", *[refusal("SlowDown", 503)] * 99, at="put_object")
    with pytest.raises(CommitError):
        commit(s3, epoch).commit(uploads)
    s3.fault = lambda _number, _operation: None
    if arrives == "before the abort":
        s3.settle()
        assert ids(s3) == [1]
    commit(s3, epoch).abort(uploads)
    s3.settle()

    assert files(s3) == []
    assert s3.data == set()
    assert s3.pending == set()


def test_a_server_without_conditional_writes_is_asked_first() -> None:
    """And its manifest is put if there is none."""
    s3 = FakeS3(conditional=False)
    store = Store("lake", CONNECTION, client=lambda _, __: s3, retrier=retrier())

    assert store.put_new("a", b"1")
    assert not store.put_new("a", b"2")
    assert s3.objects["a"] == b"1"


def test_a_conflict_of_conditional_writes_is_tried_again() -> None:
    """S3 says so while another write of the key is under way."""
    s3 = FakeS3()
    s3.fault = broken(refusal("ConditionalRequestConflict", 409), at="put_object")
    store = Store("lake", CONNECTION, client=lambda _, __: s3, retrier=retrier())

    assert store.put_new("a", b"1")


def test_an_answer_without_what_matters_is_not_believed() -> None:
    """A listing that was cut short would hide files, a completion with an error inside would lose one."""

    class Cut(FakeS3):
        def _do_list_objects_v2(self, **_: Any) -> Any:
            return {}

        def _do_complete_multipart_upload(self, **_: Any) -> Any:
            return {}

    store = Store("lake", CONNECTION, client=lambda _, __: Cut(), retrier=retrier())
    with pytest.raises(ServiceError, match="the answer has no IsTruncated"):
        list(store.keys("events/"))
    with pytest.raises(ServiceError, match="the answer has no ETag"):
        store.complete_upload("events/x", "u", [])


@pytest.mark.parametrize("text", [b"{", b'{"version": 1}', b'{"version": 2}', b"[]"])
def test_a_manifest_that_cannot_be_read_is_an_error(text: bytes) -> None:
    """Guessing would lose or double an epoch."""
    s3 = FakeS3()
    s3.objects["events/_sluice/q/00000000000000000000.json"] = text
    with pytest.raises(CommitError, match="manifest events/_sluice/q/"):
        files(s3)


def test_committed_files_checks_its_arguments() -> None:
    """As source and sink do."""
    with pytest.raises(OptionError, match="option 'path' is 'events'"):
        sluice.committed_files("events")
    with pytest.raises(OptionError, match="did you mean 'region'"):
        sluice.committed_files(PATH, regio="x")


def test_the_package_is_light() -> None:
    """`import sluice` brings neither Spark nor an SDK."""
    code = (
        "import sys, sluice\n"
        "assert sluice.committed_files\n"
        "assert not {'boto3', 'botocore', 'pyarrow', 'pyspark'} & set(sys.modules), sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
