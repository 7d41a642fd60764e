"""Makes, or brings up to date, a virtual environment with this project in it.

Runs on any Python 3.10+ with nothing installed. What is there already and fits is left alone: a stamp in
the environment holds a digest of pyproject.toml and of what was asked for. Several runs at once wait for
one another; the lock goes with the process that holds it.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEVELS = ("demo", "test", "foreign", "dev")  # the extras of pyproject.toml, each one holding those before it
FOR_USERS = "completion,spark,prometheus,opentelemetry,testing"  # the other extras


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("environment", type=Path)
    parser.add_argument("--extra", choices=LEVELS, default="dev")
    parser.add_argument("--pyspark", default="pyspark", help="a requirement, to test on another PySpark")
    parser.add_argument("--lowest", action="store_true", help="the lowest versions that users may have")
    arguments = parser.parse_args()
    if sys.version_info < (3, 10):
        sys.exit(f"needs Python 3.10 or newer, this is {sys.version.split()[0]}: make ... PYTHON=python3.12")
    environment: Path = (ROOT / arguments.environment).resolve()
    with Path(f"{environment}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(environment, arguments.extra, arguments.pyspark, is_lowest=arguments.lowest)


def make(environment: Path, extra: str, pyspark: str, *, is_lowest: bool = False) -> None:
    stamp = environment / "sluice-stamp.json"
    wanted = {
        "root": str(ROOT),  # programs of the environment, and its link to the project, hold the path
        "python": sys.version,
        "pyspark": pyspark,
        "project": hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest(),
    }
    found = read(stamp) if runs(environment) else {}
    level = LEVELS.index(extra)
    if {key: found.get(key) for key in wanted} == wanted and found["level"] >= level:
        return
    if any(found.get(key) != wanted[key] for key in ("root", "python")):
        say(f"making {environment.name} with Python {sys.version.split()[0]}")
        run(sys.executable, "-m", "venv", "--clear", str(environment))
    level = max(level, found.get("level", -1))
    stamp.unlink(missing_ok=True)  # an install that is cut short must not pass for a whole one
    said = f"the project with [{LEVELS[level]}] and {pyspark}"
    say(f"installing {said} into {environment.name}; this takes some minutes at first")
    python = str(environment / "bin" / "python")
    quiet = ("--quiet", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *quiet, "--editable", f"{ROOT}[{LEVELS[level]}]", pyspark)
    if is_lowest:
        # In a step of its own: tools of the tests ask for newer ones, which pip then complains about.
        constraints = environment / "lowest.txt"
        constraints.write_text("\n".join(lowest((ROOT / "pyproject.toml").read_text())))
        what = ("--editable", f"{ROOT}[{FOR_USERS}]", "pyspark[connect]", "opentelemetry-sdk")
        run(python, "-m", "pip", "install", *quiet, "--constraint", str(constraints), *what)
    written = stamp.with_suffix(".new")  # a stamp that is there is whole
    written.write_text(json.dumps({**wanted, "level": level}))
    written.replace(stamp)


def lowest(project: str) -> list[str]:
    """Constraints to the lower bounds of what users install, from the text of pyproject.toml."""
    for_users = project.partition("\ntest = [")[0]
    bounds = re.findall(r'^ +"([\w-]+)>=([\d.]+)"', for_users, re.MULTILINE)
    return [f"{name}=={version}" for name, version in bounds]


def read(stamp: Path) -> dict[str, Any]:
    """What the stamp says; nothing if it is missing or damaged."""
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("level"), int) else {}


def runs(environment: Path) -> bool:
    """Whether the environment has a Python that starts; that of the system may have gone elsewhere."""
    try:
        return subprocess.run((str(environment / "bin" / "python"), "-c", ""), check=False).returncode == 0
    except OSError:
        return False


def say(what: str) -> None:
    print(f"== {what}", flush=True)


def run(*command: str) -> None:
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        sys.exit(f"failed ({status}): {' '.join(command)}")


if __name__ == "__main__":
    main()
