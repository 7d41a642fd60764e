"""``sluice doctor``: whether Spark, Java and the Python that Spark starts fit Sluice."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from sluice.cli.report import Report
from sluice.environment import (
    PACKAGES,
    PYSPARK_PYTHON,
    Probe,
    explain_found_formats,
    explain_lookup,
    explain_workers,
    lookup_python,
    major_minor,
    minimum_pyspark,
    probe_python,
    worker_python,
)

HELP = "check Python, PySpark, Java, packages, and whether Spark finds Sluice"
EXAMPLE = "sluice doctor --json"

_TIMEOUT: Final = 30.0
"""Seconds that Java may take to start on a busy machine."""
_OLDEST_JAVA: Final = 17
_NEWEST_JAVA_BEFORE_4_2: Final = 23
_NEEDS: Final = (((4, 3), "Python", (3, 11)), ((4, 2), "pyarrow", (18,)))
"""From a version of PySpark on: what it needs, and its oldest version."""


def configure(parser: argparse.ArgumentParser) -> None:
    """See `sluice.cli.app.Command`."""
    parser.description = f"{HELP}; run it in the shell, and in the environment, of the application"
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> Report:
    """Checks what an application that is started from here would find."""
    found = list(check_installation())
    value = {"findings": [{"check": each.name, "ok": each.is_well, "text": each.text} for each in found]}
    text = "\n".join(f"{'ok' if each.is_well else 'FAILED':<8} {each.name}: {each.text}" for each in found)
    return Report(value, text, has_problem=not all(each.is_well for each in found))


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: the checked item.
        text: the result, in one sentence; if there is a problem, also its remedy.
        is_well: whether Spark and Sluice can work with it.
    """

    name: str
    text: str
    is_well: bool


def check_installation(
    environment: Mapping[str, str] = os.environ, probe: Probe = probe_python
) -> Iterator[Finding]:
    """All checks, one after the other: Python, Sluice, PySpark, Java, packages, and what Spark would find.

    Args:
        environment: the variables that an application would start Spark with.
        probe: asks another Python.
    """
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}", is_well=True)
    yield _check_sluice()
    if (hidden := _shadowing(Path.cwd())) is not None:
        yield Finding("working folder", hidden, is_well=False)
    # The PySpark that has a JVM; pyspark-client has none, and starts no Python.
    spark = _installed("pyspark") or _version_of_home(environment)
    yield _check_pyspark(environment)
    versions = {name: _installed(name) for name in PACKAGES}
    lacking = [name for name, version in versions.items() if version is None]
    there = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Finding("packages", f"not installed: {', '.join(lacking)}" if lacking else there, not lacking)
    if spark is None:
        return
    yield _check_java(environment, spark)
    for name, explain, command in (
        ("Python of Spark's workers", explain_workers, worker_python(environment)),
        ("Python that Spark asks for formats", explain_lookup, lookup_python(environment)),
    ):
        problem = explain(environment, probe)
        yield Finding(name, problem or probe(command).shown, problem is None)
    for problem in (explain_found_formats(environment), _explain_settings(environment)):
        if problem is not None:
            yield Finding("Python of formats that Spark finds", problem, is_well=False)


def _explain_settings(environment: Mapping[str, str]) -> str | None:
    """Spark's own settings name a Python, which holds only for formats that the application registers."""
    home = environment.get("SPARK_HOME")
    directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    if directory is None or environment.get(PYSPARK_PYTHON):
        return None
    file, lines = Path(directory, "spark-defaults.conf"), ""
    with contextlib.suppress(OSError, ValueError):
        lines = file.read_text(encoding="utf-8")
    found = re.search(r"^\s*spark\.pyspark\.python\s*[=:\s]\s*(\S+)", lines, re.MULTILINE)
    if found is None:
        return None
    return (
        f"{file} sets spark.pyspark.python, which does not hold where Spark searches for formats, nor for "
        f"those that it finds: set {PYSPARK_PYTHON}={found[1]} as well, or call sluice.register(spark)"
    )


def _check_sluice() -> Finding:
    version, place = _installed("pyspark-sluice"), Path(__file__).parents[3]
    text = f"{version} in {place}"
    if version is None:
        text = (
            f"it is on the path, in {place}, and not installed: what has come with --py-files is found by "
            "tasks, and not by Spark's own search for formats, nor where streaming reads are planned: call "
            "sluice.register(spark), and start the driver with this PYTHONPATH"
        )
    return Finding("Sluice", text, is_well=version is not None)


def _shadowing(directory: Path) -> str | None:
    """What to do about a module of the same name in a folder from which Python imports first."""
    spec = PathFinder.find_spec("sluice", [str(directory)])
    if (
        spec is None
        or spec.origin is None
        or Path(spec.origin).samefile(Path(__file__).parents[2] / "__init__.py")
    ):
        return None
    return f"programs that start here import {spec.origin} instead of Sluice: rename it, or start elsewhere"


def _check_pyspark(environment: Mapping[str, str]) -> Finding:
    spark, client = _installed("pyspark"), _installed("pyspark-client")
    brought = _version_of_home(environment)
    if spark and client:
        problem: str | None = (
            f"pyspark {spark} and pyspark-client {client} overwrite each other's files: pip uninstall both, "
            "and install the one that is needed"
        )
    elif spark and brought and spark != brought:
        problem = (
            f"pyspark {spark} is installed, and SPARK_HOME ({environment['SPARK_HOME']}) has Spark "
            f"{brought}: pip uninstall pyspark, as Spark brings its own, or pip install pyspark=={brought}"
        )
    else:
        version = spark or client or brought
        problem = minimum_pyspark(version) or _unfit(version or "")
    called = f"pyspark {spark}" if spark else f"pyspark-client {client}" if client else ""
    return Finding("PySpark", problem or called or f"that of SPARK_HOME, {brought}", problem is None)


def _unfit(spark: str) -> str | None:
    """What is too old for a version of PySpark; None if nothing is."""
    for since, what, oldest in _NEEDS:
        there = platform.python_version() if what == "Python" else _installed(what)
        if major_minor(spark) >= since and there is not None and major_minor(there) < oldest:
            return f"PySpark {spark} needs {what} {'.'.join(map(str, oldest))} or newer; this is {there}"
    return None


def _version_of_home(environment: Mapping[str, str]) -> str | None:
    """The version of PySpark that Spark brings; None if there is no SPARK_HOME, or it does not say."""
    home = environment.get("SPARK_HOME")
    for place in ("python/pyspark", ".") if home else ():
        with contextlib.suppress(OSError):
            text = Path(home or "", place, "version.py").read_text(encoding="utf-8")
            found = re.search(r"^__version__[^=]*=\s*[\"']([^\"']+)", text, re.MULTILINE)
            return None if found is None else found[1]
    return None


def _check_java(environment: Mapping[str, str], spark: str) -> Finding:
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is None:
        where = f"JAVA_HOME is {home}, which has none that runs" if home else "none found"
        return Finding("Java", f"{where}: install {_OLDEST_JAVA} or newer, or set JAVA_HOME", is_well=False)
    newest = _NEWEST_JAVA_BEFORE_4_2 if major_minor(spark) < (4, 2) else None
    if version < _OLDEST_JAVA or (newest and version > newest):
        to = f" to {newest}" if newest else " or newer"
        return Finding("Java", f"{version} ({java}): PySpark {spark} needs {_OLDEST_JAVA}{to}", is_well=False)
    return Finding("Java", f"{version} ({java})", is_well=True)


def _java_version(java: str) -> int | None:
    try:
        done = subprocess.run(  # noqa: S603 - what Spark itself would run
            (java, "-version"), capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return None if found is None else int(found[1])


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
