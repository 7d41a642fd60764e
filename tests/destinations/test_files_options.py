"""Destination files: its options, and what `committed_files` and `sluice files` do with a directory."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import sluice
from sluice.cli.app import main
from sluice.destinations import read_sink
from sluice.destinations.files import FilesDestination, S3Destination
from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.s3_store import S3Store
from sluice.errors import OptionError
from sluice.retry import patient
from sluice.sink import Epoch, Origin
from sluice.sink.committing.epoch_commit import EpochCommit

SCHEMA = StructType([StructField("id", LongType()), StructField("part", LongType())])


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/a b", LocalStore),
        ("file:///data", LocalStore),
        ("file:/data", LocalStore),
        ("s3://lake/events", S3Store),
    ],
)
def test_the_path_chooses_the_store(path: str, kind: type) -> None:
    """As Spark spells paths."""
    made: Any = read_sink({"destination": "files", "path": path, "publish": "VISIBLE"}).destination

    assert (type(made), type(made._place.store)) == (FilesDestination, kind)
    assert made._place.publish == "visible"
    assert made.name == f"files path '{path}'"


ALLOWED = "allowed is an absolute directory, file:///directory or s3://bucket/prefix"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "data/events"}, f"option 'path' is 'data/events': {ALLOWED}"),
        ({"path": "file://host/data"}, f"option 'path' is 'file://host/data': {ALLOWED}"),
        ({"path": "s3://lake//a"}, f"option 'path' is 's3://lake//a': {ALLOWED}"),
        ({"path": "/data/a\nb"}, ALLOWED),
        ({"path": "hdfs://name:8020/x"}, "'hdfs://name:8020/x': a manifest must never replace another one"),
        ({"path": "gs://bucket/x"}, f"pyarrow.fs can only replace files there: {ALLOWED}"),
        ({"path": "abfss://c@a.dfs.core.windows.net/x"}, "pyarrow.fs can only replace files there"),
        ({"publish": "all"}, "option 'publish' is 'all': allowed is one of manifest, symlink, visible"),
        ({"storageClass": "GLACIER"}, "option 'storageClass' is 'GLACIER': only for a 'path' in S3"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], message: str) -> None:
    """Before the query starts, with what is allowed."""
    with pytest.raises(OptionError) as caught:
        read_sink({"destination": "files", "path": "/data", **options})

    assert message in str(caught.value)


def test_s3_is_the_same_in_s3_alone() -> None:
    """With the same options but for the path."""
    first, *rest = FilesDestination.OPTIONS

    assert [option.key for option in (first, *rest)] == [option.key for option in S3Destination.OPTIONS]
    assert list(S3Destination.OPTIONS[1:]) == rest
    with pytest.raises(OptionError, match="'/data': allowed is s3://bucket/prefix"):
        read_sink({"destination": "s3", "path": "/data"})


def write(path: str, batch: int, publish: str) -> None:
    destination: Any = read_sink(
        {"destination": "files", "path": path, "publish": publish, "partitionBy": "part"}
    ).destination
    destination.check()
    epoch = Epoch("q", f"run-{batch}", batch)
    writer = destination.create_writer(SCHEMA, Origin("files", "q", epoch.run, batch, 0, 0))
    writer.write(pa.RecordBatch.from_pydict({"id": [batch * 2, batch * 2 + 1], "part": [0, 1]}))
    prepared = writer.prepare_commit()
    writer.close()
    EpochCommit(destination, epoch, backoff=patient(10.0)).commit(prepared)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_files_of_a_directory_are_listed_and_expire(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    """By names that other readers take; symlink manifests are without them before they go."""
    path = f"{scheme}{tmp_path}/events"
    for batch in range(3):
        write(path, batch, "symlink")

    files = sluice.committed_files(path)
    assert len(files) == 6
    assert all(each.startswith(f"{path}/part=") for each in files)
    symlinks = sorted(tmp_path.glob("events/_symlink_format_manifest/*/manifest"))
    listed = sorted(line for each in symlinks for line in each.read_text().splitlines())
    assert [each.parent.name for each in symlinks] == ["part=0", "part=1"]
    assert [each.removeprefix("file://") for each in listed] == sorted(
        each.removeprefix("file://") for each in files
    )
    assert all(each.startswith("file:///") for each in listed)

    assert main(["files", "list", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["files"] == files
    assert (len(shown["batches"]), shown["uncommitted"]) == (3, [])
    before = str(int(time.time()) + 3600)
    assert main(["files", "expire", path, "--before", before, "--execute", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["deletedFiles"] == 6
    assert sluice.committed_files(path) == []
    assert list(tmp_path.rglob("*.parquet")) == []
    assert [each.read_text() for each in symlinks] == ["", ""]

    write(path, 3, "symlink")
    assert len(sluice.committed_files(path)) == 2


def test_symlink_manifests_begin_with_all_that_is_committed(tmp_path: Path) -> None:
    """As another value of `publish` has left it; files of no epoch are left out."""
    path = str(tmp_path)
    write(path, 0, "manifest")
    write(path, 1, "visible")
    (tmp_path / "part=0" / "part-x.parquet").touch()
    write(path, 2, "symlink")

    lines = [
        line
        for each in tmp_path.glob("_symlink_format_manifest/*/manifest")
        for line in each.read_text().splitlines()
    ]
    assert sorted(lines) == sorted(f"file://{each}" for each in sluice.committed_files(path))
    assert len(lines) == 6


def test_the_small_files_of_a_directory_are_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, and by a query; the symlink manifests name the merged files."""
    for batch in range(4):
        write(str(tmp_path), batch, "symlink")
    before = sluice.committed_files(str(tmp_path))
    compact = ["files", "compact", str(tmp_path), "--json"]

    assert main([*compact, "--option", "targetFileSize=1MiB"]) == 0
    shown = json.loads(capsys.readouterr().out)
    counts = {key: shown[key] for key in ("folded", "merged", "made", "deleted", "failures")}
    assert counts == {"folded": 3, "merged": 6, "made": 2, "deleted": 0, "failures": []}
    files = sluice.committed_files(str(tmp_path))
    assert len(files) == 4
    lists = tmp_path.glob("_symlink_format_manifest/*/manifest")
    assert sorted(line for each in lists for line in each.read_text().splitlines()) == sorted(
        f"file://{each}" for each in files
    )
    assert main(["files", "list", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["batch"] for each in shown["batches"]] == [None, 3]
    assert len(shown["replaced"]) == 6
    assert main([*compact, "--option", "replacedFileRetention=0"]) == 0
    assert json.loads(capsys.readouterr().out)["deleted"] == 6
    assert not any(Path(each).exists() for each in before[:6])


def test_files_that_readers_list_are_not_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in range(3):
        write(str(tmp_path), batch, "visible")
    before = sluice.committed_files(str(tmp_path))

    assert main(["files", "compact", str(tmp_path)]) == 1
    assert "'publish' visible: those who list the path would see rows twice" in capsys.readouterr().out
    assert sluice.committed_files(str(tmp_path)) == before
    with pytest.raises(OptionError, match=r"'targetFileSize' is '1MiB': .* while files are merged"):
        read_sink(
            {
                "destination": "files",
                "path": str(tmp_path),
                "publish": "visible",
                "targetFileSize": "1MiB",
            }
        )


@pytest.mark.parametrize(
    "command", [["compact"], ["expire", "--before", "2100-01-01T00:00:00Z", "--execute"]]
)
def test_commands_refuse_a_directory_without_hard_links(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    """Before they change anything; an option goes without."""
    for batch in range(3):
        write(str(tmp_path), batch, "manifest")
    before = sluice.committed_files(str(tmp_path))

    def link(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr("sluice.destinations.files.local_store._conditional", set())
    name, *flags = command
    called = ["files", name, str(tmp_path), *flags]

    assert main(called) == 2
    assert "has no hard links" in capsys.readouterr().err
    assert sluice.committed_files(str(tmp_path)) == before
    assert main([*called, "--option", "allowUnsafeCommits=true"]) == 0
    assert sluice.committed_files(str(tmp_path)) != before
