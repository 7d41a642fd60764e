"""What S3 and directories promise alike as stores of files, and how directories fail."""

from __future__ import annotations

import errno
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_s3 import Inline
from worlds import World, Worlds

from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.store import StagedFile, Store
from sluice.errors import InvalidRecordError, OptionError, ServiceError

NAME = "part-00000_q_00000000000000000001_r_0_0000.jsonl"


def stage(store: Store, key: str, *pieces: bytes) -> StagedFile:
    stream = store.stager(Inline).open(key, "application/json")
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    stream.finish()
    file = StagedFile(key, stream.token, stream.parts(), 1, stream.size)
    stream.close()
    made: StagedFile = pickle.loads(pickle.dumps(file))
    return made


@pytest.fixture
def world(worlds: Worlds, request: pytest.FixtureRequest) -> World:
    return worlds.new(request.param)


EACH_WORLD = pytest.mark.parametrize("world", ["s3", "local"], indirect=True)


@EACH_WORLD
def test_small_files(world: World) -> None:
    """`put` replaces, `put_if_absent` does not; a missing file is no error."""
    store, root = world.store(), world.layout.root
    key = f"{root}_sluice/q/1.json"

    assert (store.get(key), store.read(key), store.exists(key)) == (None, None, False)
    store.delete(key)
    assert store.put_if_absent(key, b"1")
    assert not store.put_if_absent(key, b"2")
    assert (store.get(key), store.read(key), store.get_listed(key)) == (b"1",) * 3
    store.put(key, b"3")
    assert store.exists(key)
    assert world.files() == {"_sluice/q/1.json": b"3"}
    store.delete(key)
    assert world.files() == {}
    with pytest.raises(ServiceError):
        store.get_listed(key)


@EACH_WORLD
def test_listings_are_sorted_and_by_the_beginning_of_keys(world: World) -> None:
    """Over several pages; a prefix need not end with a name."""
    store, root = world.store(), world.layout.root
    for number, name in enumerate(["b/2", "a", "b/10", "b/c/d", "bc", "b/1", "c"]):
        store.put(f"{root}{name}", b"x" * number)

    assert list(store.keys(f"{root}b/1")) == [f"{root}b/1", f"{root}b/10"]
    assert [(each.key, each.size) for each in store.objects(f"{root}b/")] == [
        (f"{root}b/1", 5),
        (f"{root}b/10", 2),
        (f"{root}b/2", 0),
        (f"{root}b/c/d", 3),
    ]
    assert list(store.keys(f"{root}nowhere/")) == []
    assert len(list(store.keys(root))) == 7


@EACH_WORLD
def test_a_staged_file_appears_as_a_whole_when_it_is_published(world: World) -> None:
    """Again and again, with no other effect; from a process that did not write it."""
    store = world.store()
    key = f"{world.layout.root}a=1/b=%2F/{NAME}"
    file = stage(store, key, b"one\n", b"", b"two\n")

    assert world.files() == {}
    ((staged, token),) = store.staged(world.layout.root)
    assert (world.layout.epoch_of_data_file(staged), token) == (("q", 1), file.token)
    for _ in range(3):
        world.store().publish(file.key, file.token, file.parts)
        assert world.files() == {f"a=1/b=%2F/{NAME}": b"one\ntwo\n"}
    assert file.size == 8
    store.discard(file.key, file.token)
    assert list(world.files()) == [f"a=1/b=%2F/{NAME}"]
    assert list(store.staged(world.layout.root)) == []


@EACH_WORLD
def test_a_staged_file_that_is_discarded_can_not_be_published(world: World) -> None:
    """Which is an error, and not for another attempt. A stream that is being written can be discarded."""
    store = world.store()
    key = f"{world.layout.root}{NAME}"
    file = stage(store, key, b"x")
    begun = store.stager(Inline).open(f"{world.layout.root}{NAME.replace('_0000', '_0001')}", "any")
    begun.write(b"x")

    for _ in range(2):
        store.discard(file.key, file.token)
    begun.discard()
    begun.close()
    with pytest.raises(ServiceError) as caught:
        store.publish(file.key, file.token, file.parts)
    assert not caught.value.retryable
    assert (world.staged(), world.files()) == (set(), {})


@EACH_WORLD
def test_a_key_that_is_too_long_is_refused_before_anything_is_written(world: World) -> None:
    """By what the store takes."""
    with pytest.raises(
        InvalidRecordError, match=r"of the partition columns make a (key|name) of 1[0-9]{3} b"
    ):
        world.store().stager(Inline).open(f"{world.layout.root}a={'é' * 520}/{NAME}", "any")
    assert (world.staged(), world.files()) == (set(), {})


@EACH_WORLD
def test_the_check_leaves_nothing(world: World) -> None:
    """Twice."""
    store = world.store()
    store.check_conditional_writes(world.layout.manifests)
    store.check_conditional_writes(world.layout.manifests)

    assert world.files() == {}


def test_files_that_tasks_have_written_to_their_own_disks(worlds: Worlds) -> None:
    """They are missing before anything is committed, and the error says why; so does a file that vanishes."""
    world = worlds.new("local")
    file = stage(world.store(), NAME, b"x")
    world.store().check_staged(file.key, file.token)
    elsewhere = worlds.new("local").store()

    why = "option 'path' must be a directory that the driver and all executors share"
    with pytest.raises(ServiceError, match=why):
        elsewhere.check_staged(file.key, file.token)
    with pytest.raises(ServiceError, match=why):
        elsewhere.publish(file.key, file.token, ())
    world.store().publish(file.key, file.token, ())
    world.store().check_staged(file.key, file.token)


def test_a_directory_that_vanishes_fails_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the staged file exists."""
    store = LocalStore(tmp_path)
    file = stage(store, f"a=1/{NAME}", b"x")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)

    with pytest.raises(ServiceError, match=r"rename of .*No such file"):
        store.publish(file.key, file.token, ())


def test_one_of_many_writers_at_the_same_moment_succeeds(tmp_path: Path) -> None:
    """As threads, which the kernel treats as it does processes."""
    with ThreadPoolExecutor(8) as pool:
        for key in map(str, range(50)):
            stores = [LocalStore(tmp_path) for _ in range(8)]
            won = list(
                pool.map(lambda store, key=key: store.put_if_absent(key, str(id(store)).encode()), stores)
            )
            assert won.count(True) == 1
            assert stores[0].get(key) == str(id(stores[won.index(True)])).encode()
    assert len(list(tmp_path.glob("*"))) == 51  # and the staging area


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS", "EOPNOTSUPP"])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """As some that are mounted over HTTP; unless the user says that there is one driver."""

    def link(*_: object) -> None:
        raise OSError(getattr(errno, code), "no")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(
        OptionError, match=r"has no hard links \(E\w+\), so two drivers.*'allowUnsafeCommits'"
    ):
        LocalStore(tmp_path).check_conditional_writes("_sluice/")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    unsafe = LocalStore(tmp_path, allows_unsafe_commits=True)
    unsafe.check_conditional_writes("_sluice/")
    assert unsafe.put_if_absent("a", b"1")
    assert not unsafe.put_if_absent("a", b"2")
    assert unsafe.get("a") == b"1"


@pytest.mark.parametrize(
    ("code", "passes"), [("ENOSPC", True), ("EIO", True), ("EACCES", False), ("EROFS", False)]
)
def test_what_may_pass_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, *, passes: bool
) -> None:
    """A full disk may get room. The error names the operation and the file; nothing is left."""

    def fail(*_: object) -> None:
        raise OSError(getattr(errno, code), "why")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ServiceError, match=rf"write of {tmp_path}/a: why") as caught:
        LocalStore(tmp_path).put("a", b"1")

    assert (caught.value.retryable, caught.value.code) == (passes, code)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_killed_writer_leaves_is_removed_after_an_hour(tmp_path: Path) -> None:
    """A small file that was not written to its end. Until then it may be another process' at work."""
    store = LocalStore(tmp_path)
    store.put("a", b"")
    young, old = (tmp_path / "_sluice" / "staging" / f"{name}.tmp" for name in ("young", "old"))
    for path in (young, old):
        path.touch()
    os.utime(old, (0, 0))

    assert list(store.staged("")) == []
    assert (young.exists(), old.exists()) == (True, False)
