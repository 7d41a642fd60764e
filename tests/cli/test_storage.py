"""Which place a path names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kinesis_transport import OPTIONS

from sluice.cli.options import read_connection
from sluice.cli.storage import StorageError, open_storage


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("s3://bucket/checkpoints/orders", "bucket/checkpoints/orders"),
        ("s3a://bucket/checkpoints/orders/", "bucket/checkpoints/orders"),
        ("S3://bucket/x", "bucket/x"),
        ("s3://bucket/orders#2", "bucket/orders#2"),
        ("s3://bucket/orders?2", "bucket/orders?2"),
        ("s3://bucket/a%20b", "bucket/a%20b"),
    ],
)
def test_a_key_is_taken_as_it_is(path: str, root: str) -> None:
    """As Spark takes it: a reset of ``orders#2`` is none of ``orders``."""
    assert open_storage(path, read_connection(OPTIONS))._root == root


@pytest.mark.parametrize(("given", "seconds"), [("60s", 10.0), ("5s", 5.0)])
def test_people_do_not_wait_long_for_an_s3_that_is_silent(
    monkeypatch: pytest.MonkeyPatch, given: str, seconds: float
) -> None:
    """Nor can they interrupt pyarrow while it waits."""
    made: dict[str, object] = {}
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **arguments: made.update(arguments))
    open_storage("s3://bucket/x", read_connection({**OPTIONS, "readTimeout": given}))

    assert made["request_timeout"] == seconds


@pytest.mark.skipif(os.name != "posix", reason="paths of POSIX")
@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/a/b/", "/a/b"),
        ("/a:b/c", "/a:b/c"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b%20c", "/a/b%20c"),
        ("file:///a/b c#d", "/a/b c#d"),
        ("orders#2", f"{Path.cwd()}/orders#2"),
    ],
)
def test_a_local_path_is_taken_as_it_is(path: str, root: str) -> None:
    """Also as a URL, which is how Spark prints it, without escapes."""
    assert open_storage(path, read_connection({}))._root == root


@pytest.mark.parametrize("path", ["http://host/x", "file://host/x", "s4://bucket/x", "hdfs://nosuch:1/x"])
def test_what_cannot_be_reached_is_said_in_a_line(path: str) -> None:
    with pytest.raises(StorageError) as raised:
        open_storage(path, read_connection({}))

    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)
