"""docs/custom-sources.md: the printed code does what the page says."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyarrow import parquet

import sluice
from sluice.errors import DataLossError, OptionError
from sluice.source import Limits
from sluice.testing import QueryRunner, Subject, check_history, histories

PAGE = Path(__file__).resolve().parent.parent / "docs" / "custom-sources.md"
FILES = {
    "file_source": "Reads Parquet files and JSON lines below a directory, or an s3:// prefix.",
    "kafka_source": "Reads topics of Kafka.",
    "tick_source": "Gives the seconds that have passed.",
    "pyspark_file_source": "The format files.",
    "printed_test": "Tests the source of files.",
}
PUBLIC = {
    "sluice",
    "sluice.errors",
    "sluice.options",
    "sluice.source",
    "sluice.source.settings",
    "sluice.testing",
}


def printed(title: str) -> str:
    """The code block whose docstring is `title`."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (code,) = [block for block in blocks if block.startswith(f'"""{title}"""')]
    return str(code)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Saves the modules as the page says."""
    directory = tmp_path / "modules"
    directory.mkdir()
    for name, title in FILES.items():
        (directory / f"{name}.py").write_text(printed(title))
    monkeypatch.syspath_prepend(directory)
    yield
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    directory = tmp_path / "lake"
    directory.mkdir()
    return directory


def write_lines(file: Path, *ids: int) -> None:
    file.write_text("".join(json.dumps({"id": n, "name": f"name {n}"}) + "\n" for n in ids))


def write_parquet(file: Path, *ids: int, rows: int = 2) -> None:
    table = pa.table({"id": pa.array(ids, pa.int64()), "name": [f"name {n}" for n in ids]})
    parquet.write_table(table, file, row_group_size=rows)


def query(lake: Path, **options: str) -> QueryRunner:
    source = importlib.import_module("file_source").FileSource
    return QueryRunner(source, {"path": str(lake), "splitDiscoveryInterval": "1ms", **options})


def ids(rows: list[dict[str, Any]] | None) -> list[int]:
    return [row["id"] for row in rows or ()]


@pytest.mark.parametrize(("name", "lines"), [("file_source", 80), ("kafka_source", 120)])
def test_the_examples_are_short(name: str, lines: int) -> None:
    """And read like the code of anybody."""
    assert len(printed(FILES[name]).splitlines()) <= lines


@pytest.mark.parametrize("name", FILES)
def test_the_examples_import_what_is_public(name: str) -> None:
    """Modules that others may use, and no name that begins with an underscore."""
    for node in ast.walk(ast.parse(printed(FILES[name]))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sluice"):
            assert node.module in PUBLIC
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]
        if isinstance(node, ast.Import):
            assert {a.name for a in node.names if a.name.startswith("sluice")} <= PUBLIC


# --- files ----------------------------------------------------------------------------------------------


def test_files_of_both_forms_are_read(lake: Path) -> None:
    """Once, in batches and all at once, and those that come later too."""
    write_parquet(lake / "a.parquet", 1, 2, 3)
    os.utime(lake / "a.parquet", ns=(1, 1))
    write_lines(lake / "b.jsonl", 4, 5)
    with query(lake) as running:
        assert running.read_all() == [{"id": n, "name": f"name {n}"} for n in (1, 2, 3, 4, 5)]
        assert ids(running.run_batch()) == [1, 2, 3, 4, 5]
        assert running.run_batch() == []
        write_lines(lake / "_unfinished", 6)
        assert running.run_batch() == []
        (lake / "_unfinished").rename(lake / "c.jsonl")
        running.restart()
        assert ids(running.run_until(6)) == [1, 2, 3, 4, 5, 6]
        assert ids(running.read(0)) == [1, 2, 3, 4, 5]


def test_a_batch_takes_row_groups(lake: Path) -> None:
    """Each by its number, so that a batch ends inside of a file."""
    write_parquet(lake / "a.parquet", *range(9))
    with query(lake, maxRecordsPerTrigger="4") as running:
        assert [ids(running.run_batch()), ids(running.run_batch(crash=True))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert running.offsets[1]["splits"][str(lake / "a.parquet")]["at"] == 2
        assert ids(running.run_batch()) == [8]
        assert [ids(running.read(number)) for number in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize("block", [1, 7, 29, 64, 10_000])
def test_lines_are_cut_at_bytes(lake: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Every line is in the range in which it begins, wherever ranges end, in UTF-8 of several bytes too."""
    module = importlib.import_module("file_source")
    (lake / "a.jsonl").write_text('{"id": 0, "name": "a"}\n')
    rows = [{"id": n, "name": "ä" * n} for n in range(1, 12)]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)  # no newline at the end
    (lake / "b.jsonl").write_text(text)
    monkeypatch.setattr(module, "BLOCK", max(block, 24) if block < 24 else block)
    with query(lake) as running:
        source = module.FileSource(str(lake))
        monkeypatch.setattr(module, "BLOCK", block)
        split = source.list_splits()[1]
        places = [0, *(end.position or split.size for end in source.ends(split))]
        found = []
        with source.files()[0].open_input_file(split.id) as file:
            for start, end in itertools.pairwise(places):
                found += module.lines(file, start, end).splitlines()
        assert [json.loads(line) for line in found] == rows
        monkeypatch.setattr(module, "BLOCK", 10_000)
        assert ids(running.run_available(Limits(bytes=block))) == list(range(12))


def test_a_file_that_vanishes_is_a_data_loss(lake: Path) -> None:
    """If it was read in part; the error names source, file and rule."""
    write_parquet(lake / "a.parquet", *range(4))
    write_parquet(lake / "b.parquet", *range(10, 14))
    with query(lake, maxRecordsPerTrigger="2") as running:
        running.run_batch()
        (lake / "a.parquet").unlink()
        with pytest.raises(DataLossError, match=r"source files, split .*a\.parquet: it is gone"):
            running.run_batch()
    with query(lake, maxRecordsPerTrigger="2", failOnDataLoss="false") as tolerant:
        tolerant.offsets = running.offsets
        assert ids(tolerant.run_until(4)) == [10, 11, 12, 13]


def test_a_file_that_is_replaced_is_a_data_loss(lake: Path) -> None:
    """A part of the old one, and a part of the new one, would make rows that never were."""
    write_parquet(lake / "a.parquet", *range(4))
    with query(lake, maxRecordsPerTrigger="2") as running:
        running.run_batch()
        write_parquet(lake / "a.parquet", *range(6))
        with pytest.raises(DataLossError, match="it was replaced, and it was read in part"):
            running.run_batch()
        with pytest.raises(DataLossError, match="it was replaced, and a batch has to be read again"):
            running.read(0)


def test_a_directory_without_files_is_refused(lake: Path) -> None:
    """There are no columns."""
    made: Any = sluice.data_source(importlib.import_module("file_source").FileSource)
    with pytest.raises(OptionError, match=r"option 'path' is .*: there is no file"):
        made({"path": str(lake)}).schema()
    with pytest.raises(OptionError, match="files: option 'path' is required"):
        made({}).schema()


def test_the_package_makes_the_format_known() -> None:
    """The module is light, and what Spark pickles comes back."""
    made = importlib.import_module("pyspark_file_source").DefaultSource
    assert made.name() == "files"
    assert "file_source" not in sys.modules
    assert pickle.loads(pickle.dumps(made({"path": "/x"}))).options == {"path": "/x"}


# --- a custom source, and the tests on the page ---------------------------------------------------------


def test_ticks() -> None:
    """A custom enumerator and reader."""
    source = importlib.import_module("tick_source").TickSource
    with QueryRunner(source, {"maxRecordsPerTrigger": "5"}) as running:
        assert running.run_batch() == [{"second": n} for n in range(5)]
        assert running.run_batch(crash=True) == [{"second": n} for n in range(5, 10)]
        assert running.read(0) == [{"second": n} for n in range(5)]


def test_the_printed_test_passes(tmp_path: Path) -> None:
    """As it is printed."""
    directory = tmp_path / "printed"
    directory.mkdir()
    importlib.import_module("printed_test").test_new_files_are_found(directory)


def test_random_histories_of_files() -> None:
    """Every row comes once, in the order of the files."""

    @settings(max_examples=10, deadline=None)
    @given(history=histories(puts=40, waits=()))
    def check(history: Any) -> None:
        with tempfile.TemporaryDirectory() as directory:
            made: list[int] = []

            def put(count: int) -> None:
                file = Path(directory, f"{len(made):06}.jsonl")
                made.extend(range(len(made), len(made) + count))
                unfinished = file.with_name("_unfinished")
                unfinished.write_text("".join(json.dumps({"id": n}) + "\n" for n in made[-count:]))
                unfinished.rename(file)

            put(1)  # the columns are those of the first file
            subject = Subject(
                importlib.import_module("file_source").FileSource,
                {"path": directory, "splitDiscoveryInterval": "1ms"},
                put,
                expected=lambda: made,
                identity=lambda row: row["id"],
                split=lambda _: None,  # one order for all rows: oldest files first
                position=lambda row: row["id"],
                wait=lambda _: None,
            )
            check_history(subject, history)

    check()
