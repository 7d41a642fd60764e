"""What README.md says of the options is what the options say of themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_tables_are_those_of_the_declarations() -> None:
    """An option that was added, changed or built without `make docs` makes the README stale, and fails."""
    check = subprocess.run(
        (sys.executable, "docs/reference.py", "--check"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")
