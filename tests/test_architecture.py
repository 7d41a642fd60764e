"""docs/architecture.md names modules that exist, and keeps its glossary short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SRC = ROOT / "src" / "sluice"


def modules_named() -> set[str]:
    """All paths in backticks; one without a folder lies next to the path before it, or at the top."""
    found: set[str] = set()
    for line in PAGE.splitlines():
        folder = ""
        for path in re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", line):
            here = path if "/" in path.rstrip("/") or not (SRC / folder / path).exists() else folder + path
            found.add(here)
            folder = here[: here.rstrip("/").rfind("/") + 1] if here.endswith(".py") else folder
    return {path for path in found if not path.startswith(("src/", "tests/"))}


@pytest.mark.parametrize("path", sorted(modules_named()))
def test_a_module_that_the_page_names_exists(path: str) -> None:
    """A module that is moved or renamed is moved on the page as well."""
    assert any((folder / path).exists() for folder in (SRC, SRC / "kinesis"))


def test_every_room_is_on_the_page() -> None:
    """A newcomer finds each package."""
    rooms = {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}
    assert {room for room in rooms if f"`{room}/`" not in PAGE} == set()


def test_the_glossary_is_short() -> None:
    """At most thirty terms have a special sense."""
    glossary = PAGE.split("## Glossary")[1].split("## ")[0]
    terms = re.findall(r"^\| ([a-z ]+) \|", glossary, re.MULTILINE)
    assert 10 < len(terms) - 1 <= 30  # without the header
