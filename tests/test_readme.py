"""README.md is short, the site has every page, and the tables of options are those of the declarations."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_tables_are_those_of_the_declarations() -> None:
    """An option that was added, changed or built without `make docs` makes the documents stale, and fails."""
    check = subprocess.run(
        (sys.executable, "docs/reference.py", "--check"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_lead_to_files(page: str) -> None:
    """Those of the pages that are not in the site, which checks its own."""
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", (ROOT / page).read_text())
    missing = [link for link in links if not link.startswith("https://") and not (ROOT / link).exists()]

    assert missing == []


def test_every_page_is_found() -> None:
    """In the navigation of the site, and from the end of the Quickstart, which the README leads to."""
    navigation, quickstart = (ROOT / "mkdocs.yml").read_text(), (ROOT / "docs" / "index.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}

    assert "](docs/index.md)" in (ROOT / "README.md").read_text()
    assert {page for page in pages if f"]({page})" not in quickstart} == {"index.md"}
    assert {page for page in pages if f": {page}\n" not in navigation} == set()


def test_the_readme_is_what_a_newcomer_reads() -> None:
    """Reference material is in docs/: the README has no table of options, no policy, and no more than three
    screens.
    """
    readme = (ROOT / "README.md").read_text()

    assert "<!-- begin" not in readme
    assert "```json" not in readme
    assert len(readme.splitlines()) <= 120
