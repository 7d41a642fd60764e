"""A directory that destination ``files`` writes to, read with none of our code but the public helper."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds

import sluice


class Directory:
    """A directory as others see it; has the methods of `Lake` that tests of both need."""

    def __init__(self, root: Path) -> None:
        self.path = str(root)
        self.root = root

    def options(self, _through: str | None = None, **more: str) -> dict[str, str]:
        """Of the sink."""
        return {"destination": "files", "path": self.path, **more}

    def manifests(self) -> list[dict[str, Any]]:
        """Those of all queries, in the order of their names."""
        found = sorted(self.root.glob("_sluice/*/*.json"))
        return [json.loads(path.read_text()) for path in found]

    def files(self) -> list[str]:
        """What the public helper lists, below the directory."""
        return [str(Path(each).relative_to(self.root)) for each in sluice.committed_files(self.path)]

    def get(self, key: str) -> bytes:
        return (self.root / key).read_bytes()

    def listed(self) -> list[str]:
        return [str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()]

    def check_nothing_else(self) -> None:
        """The directory holds the files that manifests list, the manifests, and nothing in progress."""
        listed = self.listed()
        others = {path for path in listed if not path.startswith("_")} ^ set(self.files())
        assert not others, others
        # A killed process may leave what it was writing in one go.
        assert [path for path in listed if "/pending/" in path or path.endswith(".staged")] == []

    def by_pyarrow(self) -> Counter[int]:
        """Rows as pyarrow finds them who lists the directory."""
        if not self.root.exists():
            return Counter()
        kind = "json" if any(self.root.rglob("*.jsonl")) else "parquet"
        found = ds.dataset(self.path, format=kind)
        return Counter(found.to_table(columns=["id"]).column(0).to_pylist() if found.files else [])

    def by_duckdb(self) -> Counter[int]:
        """As `by_pyarrow`, with a glob, which leaves out no directory."""
        found: Counter[int] = Counter()
        for suffix, function in (("parquet", "read_parquet"), ("jsonl", "read_json")):
            if any(self.root.rglob(f"*.{suffix}")):
                found.update(_ids(function, f"{self.path}/**/*.{suffix}"))
        return found

    def by_symlinks(self) -> Counter[int]:
        """Rows as readers of symlink manifests find them; each file exists."""
        lists = self.root.glob("_symlink_format_manifest/**/manifest")
        listed = [line for path in lists for line in path.read_bytes().decode().split("\n")[:-1]]
        lines = [line.removeprefix("file://") for line in listed]
        if not lines:
            return Counter()
        function = "read_parquet" if lines[0].endswith(".parquet") else "read_json"
        return Counter(_ids(function, lines))


def _ids(function: str, files: str | list[str]) -> list[int]:
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT id FROM {function}(?)", [files]).fetchall()  # noqa: S608 - ours
        return [row[0] for row in rows]
