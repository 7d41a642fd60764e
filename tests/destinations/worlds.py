"""Where files may be, S3 in memory or a directory: with faults at any call, and read as others read it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fake_s3 import PATH, Crash, FakeS3, Inline, bucket

from sluice.destinations.files import FilesDestination
from sluice.destinations.files.committed_files import committed_urls
from sluice.destinations.files.layout import Layout
from sluice.destinations.files.local_store import LocalStore
from sluice.destinations.files.store import Store
from sluice.destinations.files.writer import FileSettings
from sluice.errors import ServiceError

STORES = ("s3", "local")
PUBLISH = ("manifest", "symlink", "visible")
EACH_STORE = pytest.mark.parametrize("store", STORES)
EACH_WAY = pytest.mark.parametrize("publish", PUBLISH)

Fault = Callable[[int, str], str | Exception | None]


def no_fault(_number: int, _operation: str) -> None:
    return None


def nothing() -> None:
    pass


class World:
    """A path, as destinations see it and as readers see it.

    Attributes:
        fault: as of `FakeS3`.
        changed: called when something may have changed.
        dead: the process that makes the calls was killed.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.fault: Fault = no_fault
        self.changed: Callable[[], None] = nothing
        self.dead = False

    def store(self) -> Store:
        """For destinations: with faults."""
        raise NotImplementedError

    def reader(self) -> Store:
        """For readers, and for another process: without faults."""
        raise NotImplementedError

    def files(self) -> Mapping[str, bytes]:
        """All files that readers may find, by their path below the path."""
        raise NotImplementedError

    def staged(self) -> set[str]:
        """What is staged, or was begun."""
        raise NotImplementedError

    def arrive(self) -> None:
        """Late calls take effect."""

    def restart(self) -> None:
        """A new process follows the one that was killed."""
        self.dead = False

    def destination(self, **settings: Any) -> FilesDestination:
        made = FileSettings(**({"file_format": "jsonl", "compression": "none"} | settings))
        return FilesDestination(self.layout, self.store(), made, executor=Inline, pause=lambda _: None)

    # --- readers --------------------------------------------------------------------------------------

    def by_manifests(self) -> Counter[int]:
        """The rows that `sluice.committed_files` returns; each of its files exists."""
        urls = committed_urls(self.reader(), self.layout)
        return self._rows(self.files(), (url.removeprefix(self.layout.address("")) for url in urls))

    def by_symlinks(self) -> Counter[int]:
        """The rows that Hive finds; each listed file exists."""
        files = self.files()
        lists = [body for path, body in files.items() if path.startswith("_symlink_format_manifest/")]
        lines = [line for body in lists for line in body.decode().split("\n")[:-1]]
        return self._rows(files, (line.removeprefix(self.layout.url("")) for line in lines))

    def by_listing(self) -> Counter[int]:
        """The rows that a reader finds who lists the path."""
        files = self.files()
        return self._rows(files, self.shown(files))

    @staticmethod
    def shown(files: Mapping[str, bytes]) -> list[str]:
        """What a listing shows that leaves out names as Spark and pyarrow do, and as a glob does."""
        shown = [path for path in files if not path.startswith(("_", ".")) and "/_" not in path]
        assert sorted(shown) == sorted(path for path in files if path.endswith(".jsonl"))
        return shown

    def leftovers(self) -> set[str]:
        """Files that no manifest lists, except those that belong there."""
        urls = committed_urls(self.reader(), self.layout)
        listed = {url.removeprefix(self.layout.address("")) for url in urls}
        files = self.files()
        pending = {path for path in files if "/pending/" in path}
        return {*self.staged(), *pending, *(set(self.shown(files)) - listed)}

    @staticmethod
    def _rows(files: Mapping[str, bytes], paths: Iterable[str]) -> Counter[int]:
        bodies = (files.get(path, b'{"id": "missing"}') for path in paths)
        return Counter(json.loads(line)["id"] for body in bodies for line in body.splitlines())


class S3World(World):
    def __init__(self, s3: FakeS3) -> None:
        super().__init__(Layout(PATH))
        self.s3 = s3
        s3.fault = lambda *call: self.fault(*call)  # noqa: PLW0108 - it changes
        s3.changed = lambda *_: self.changed()

    def restart(self) -> None:
        self.s3.dead = False

    def store(self) -> Store:
        return bucket(self.s3)

    def reader(self) -> Store:
        return bucket(FakeS3(objects=self.s3.objects, uploads=self.s3.uploads, modified=self.s3.modified))

    def files(self) -> Mapping[str, bytes]:
        return {key.removeprefix(self.layout.root): body for key, body in self.s3.objects.items()}

    def staged(self) -> set[str]:
        return set(self.s3.uploads)

    def arrive(self) -> None:
        self.s3.apply_late_calls()


CALLS = ("open", "publish", "discard", "put", "put_if_absent", "get_listed", "exists", "delete", "objects")


class FaultyStore(LocalStore):
    """A directory whose calls fail as the world wants."""

    def __init__(self, root: Path, world: LocalWorld) -> None:
        super().__init__(root)
        for name in CALLS:
            setattr(self, name, world.hooked(name, getattr(self, name)))


class LocalWorld(World):
    def __init__(self, root: Path) -> None:
        super().__init__(Layout(str(root)))
        self.root = root
        self.calls = 0

    def hooked(self, name: str, effect: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.dead:
                raise Crash
            self.calls += 1
            fault = self.fault(self.calls, name)
            if isinstance(fault, ClientError):
                code = fault.response["Error"]["Code"]
                raise ServiceError(code, retryable=code == "SlowDown")
            if fault == "crash-before":
                self.dead = True
                raise Crash
            result = effect(*arguments)
            self.changed()
            if fault == "crash-after":
                self.dead = True
                raise Crash
            if fault in ("lost", "late"):  # as on NFS
                raise ServiceError("ETIMEDOUT", retryable=True)
            return result

        return call

    def store(self) -> Store:
        return FaultyStore(self.root, self)

    def reader(self) -> Store:
        return LocalStore(self.root)

    def files(self) -> Mapping[str, bytes]:
        found = [path for path in self.root.rglob("*") if path.is_file() and path.parent.name != "staging"]
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in found}

    def staged(self) -> set[str]:
        staging = self.root / "_sluice" / "staging"
        return {path.name for path in staging.iterdir()} if staging.exists() else set()


class Worlds:
    """Makes worlds, and removes their directories."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # noqa: S108 - where there is one: a disk takes its time to synchronise
        self._directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self._made = 0

    def new(self, store: str, **s3: Any) -> World:
        if store == "s3":
            return S3World(FakeS3(**s3))
        self._made += 1
        return LocalWorld(self._directory / str(self._made))

    def close(self) -> None:
        shutil.rmtree(self._directory)
