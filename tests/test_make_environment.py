"""What `make` does about an existing environment: nothing if it is whole; it repairs any other."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
STAMP = "sluice-stamp.json"


class Checkout:
    """A folder with the script and pyproject.toml, and what the script has run."""

    def __init__(self, root: Path) -> None:
        self.environment = root / ".venv"
        spec = importlib.util.spec_from_file_location("made", root / ".ci" / "environment.py")
        assert spec is not None
        assert spec.loader is not None
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.run = self.run
        self.module = module
        self.done: list[str] = []
        self.fails = False

    def run(self, *command: str) -> None:
        self.done.append(command[2])
        if command[2] == "venv":
            shutil.rmtree(self.environment, ignore_errors=True)
            (self.environment / "bin").mkdir(parents=True)
            (self.environment / "bin" / "python").symlink_to(sys.executable)
        elif self.fails:
            raise KeyboardInterrupt

    def make(self, extra: str = "test") -> list[str]:
        """Returns the steps that were done."""
        self.done = []
        self.module.make(self.environment, extra, "pyspark")
        return self.done


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "one"
    (root / ".ci").mkdir(parents=True)
    for name in (".ci/environment.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root / name)
    return Checkout(root)


def test_a_fitting_environment_is_left_alone(checkout: Checkout) -> None:
    """More extras are installed into it, and fewer are no reason to."""
    assert checkout.make("test") == ["venv", "pip"]
    assert checkout.make("test") == checkout.make("demo") == []
    assert checkout.make("dev") == ["pip"]
    assert checkout.make("test") == []


def shorten(environment: Path) -> None:
    stamp = environment / STAMP
    stamp.write_text(stamp.read_text()[:-9])


def empty(environment: Path) -> None:
    (environment / STAMP).write_text("")


def strip(environment: Path) -> None:
    stamp = environment / STAMP
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "level": None}))


def lose_python(environment: Path) -> None:
    (environment / "bin" / "python").unlink()


def break_python(environment: Path) -> None:
    lose_python(environment)
    (environment / "bin" / "python").symlink_to("/no/such/python")


def lose_stamp(environment: Path) -> None:
    (environment / STAMP).unlink()


@pytest.mark.parametrize("damage", [shorten, empty, strip, lose_python, break_python, lose_stamp])
def test_what_is_damaged_is_made_anew(checkout: Checkout, damage: Callable[[Path], None]) -> None:
    """A full disk and a loss of power leave such stamps; the Python of the system may go elsewhere."""
    checkout.make()
    damage(checkout.environment)

    assert checkout.make() == ["venv", "pip"]
    assert checkout.make() == []


def test_an_install_that_is_interrupted_is_begun_again(checkout: Checkout) -> None:
    checkout.fails = True
    with pytest.raises(KeyboardInterrupt):
        checkout.make()
    checkout.fails = False

    assert "pip" in checkout.make()
    assert checkout.make() == []


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_checkout_that_is_moved_or_copied_runs_its_own_code(
    checkout: Checkout, move: Callable[..., Any], tmp_path: Path
) -> None:
    """What is installed in its environment is a link to where it was."""
    checkout.make()
    move(
        checkout.environment.parent,
        tmp_path / "two",
        **({"symlinks": True} if move is shutil.copytree else {}),
    )
    there = Checkout(tmp_path / "two")

    assert there.make() == ["venv", "pip"]
    assert there.make() == []


def test_the_lowest_versions_are_those_of_what_users_install(checkout: Checkout) -> None:
    project = (
        '[x]\ndependencies = [\n  "a-b>=1.2", # why\n]\nan-extra = [\n  "c>=3",\n]\ntest = [\n  "d>=4",\n]\n'
    )

    assert checkout.module.lowest(project) == ["a-b==1.2", "c==3"]
