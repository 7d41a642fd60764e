"""Whether Spark, started from this process, would find Sluice, and what to set where it would not.

Spark does not run Python data sources in the application's process. It starts Python of its own: one to look
for formats, and others to plan, read and write. Which ones is set by environment variables, and not by which
Python the application runs on:

- to look for formats: ``PYSPARK_DRIVER_PYTHON``, else ``PYSPARK_PYTHON``, else ``python3``
  (``PythonUtils.defaultPythonExec`` of Spark);
- to plan, read and write: ``PYSPARK_PYTHON``, else ``python3`` (``SparkContext.pythonExec`` of PySpark).

So a format is unknown, or Sluice is, where a virtual environment is not activated, and where
``PYSPARK_DRIVER_PYTHON`` is ``jupyter``. Nothing here needs PySpark or a JVM.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

__all__ = [
    "Finding",
    "Probed",
    "check_environment",
    "explain_lookup",
    "explain_workers",
    "lookup_python",
    "minimum_pyspark",
    "probe_python",
    "worker_python",
]

PYSPARK_PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
SHIMS: Final = ("pyspark_kinesis_efo", "pyspark_async_sink", "pyspark_dynamodb_streams")

_PACKAGES: Final = ("boto3", "botocore", "msgspec", "numpy", "pyarrow", "pybase64", "tenacity")
_MODULES: Final = ("sluice", *SHIMS, *_PACKAGES)
_TIMEOUT: Final = 30.0
"""Seconds that another Python may take to start on a busy machine."""
_OLDEST_PYTHON: Final = (3, 10)
_OLDEST_PYSPARK: Final = (4, 0)
_OLDEST_JAVA: Final = 17
_NEWEST_JAVA_BEFORE_4_2: Final = 23
_ARCHITECTURES: Final = ("x86_64", "amd64", "aarch64", "arm64")

_PROBE: Final = """
import importlib.util, json, platform, sys
names = json.loads(sys.argv[1])
def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:
        return False
print(json.dumps({
    "path": sys.executable,
    "version": platform.python_version(),
    "architecture": platform.machine(),
    "missing": [name for name in names if not found(name)],
}))
"""


@dataclass(frozen=True)
class Probed:
    """Another Python.

    Attributes:
        command: as Spark is told to call it.
        path: where it is; None where the command cannot be run as a Python.
        version: of Python, such as ``3.12.4``.
        missing: which modules, of Sluice and of what it needs, it does not have.
    """

    command: str
    path: str | None = None
    version: str = ""
    architecture: str = ""
    missing: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """For messages."""
        if self.path is None:
            return f"'{self.command}'"
        where = "" if self.path == self.command else f"{self.path}, "
        return f"'{self.command}' ({where}Python {self.version})"

    def problem(self, *, shims: bool = False) -> str | None:
        """Why Sluice cannot run there; None where it can.

        Args:
            shims: the two modules that Spark finds the formats by are needed as well.
        """
        missing = [name for name in self.missing if shims or name not in SHIMS]
        if self.path is None:
            return "is no Python that can be run"
        if "sluice" in missing:
            return "does not have Sluice"
        if missing:
            return f"lacks {', '.join(missing)}"
        if _major_minor(self.version) != sys.version_info[:2]:
            return f"is not the Python {sys.version_info[0]}.{sys.version_info[1]} of the application"
        return None


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was looked at.
        text: what was found, in one sentence; with what to set where it is not well.
        is_well: whether Spark and Sluice can work with it.
    """

    name: str
    text: str
    is_well: bool


Probe = Callable[[str], Probed]


def lookup_python(environment: Mapping[str, str]) -> str:
    """The Python that Spark asks for formats, as a command."""
    return environment.get(DRIVER_PYTHON) or worker_python(environment)


def worker_python(environment: Mapping[str, str]) -> str:
    """The Python that plans, reads and writes, as a command."""
    return environment.get(PYSPARK_PYTHON) or "python3"


def probe_python(command: str, search_path: Sequence[str] = ()) -> Probed:
    """What a Python has. Starts it, unless it is this one.

    Args:
        command: as Spark is told to call it.
        search_path: what it finds modules in besides its own, such as files that Spark sends to workers.
    """
    path = shutil.which(command)
    if path is None:
        return Probed(command)
    if Path(path).absolute().parent == Path(sys.executable).absolute().parent:
        missing = tuple(name for name in _MODULES if importlib.util.find_spec(name) is None)
        return Probed(command, path, platform.python_version(), platform.machine(), missing)
    environment = dict(os.environ)
    inherited = filter(None, [environment.get("PYTHONPATH")])
    environment["PYTHONPATH"] = os.pathsep.join([*search_path, *inherited])
    try:
        done = subprocess.run(  # noqa: S603 - what Spark itself is about to run
            (path, "-c", _PROBE, json.dumps(_MODULES)),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT,
        )
        told = json.loads(done.stdout)
        return Probed(command, told["path"], told["version"], told["architecture"], tuple(told["missing"]))
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return Probed(command)


def explain_workers(environment: Mapping[str, str], probe: Probe = probe_python) -> str | None:
    """One sentence with what to set where Sluice cannot run in the Python of Spark's workers; else None."""
    probed = probe(worker_python(environment))
    if (problem := probed.problem()) is None:
        return None
    return (
        f"Spark runs data sources in {probed.shown}, which {problem}: set "
        f"{PYSPARK_PYTHON}={sys.executable} before the session starts"
    )


def explain_lookup(environment: Mapping[str, str], probe: Probe = probe_python) -> str | None:
    """One sentence with what to set where Spark would not find the formats by itself; else None."""
    probed = probe(lookup_python(environment))
    if (problem := probed.problem(shims=True)) is None:
        return None
    name = DRIVER_PYTHON if environment.get(DRIVER_PYTHON) else PYSPARK_PYTHON
    otherwise = ", or call sluice.register(spark) in it" if name == DRIVER_PYTHON else ""
    return (
        f"Spark asks {probed.shown} for formats, which {problem}: set "
        f"{name}={sys.executable} before the session starts{otherwise}"
    )


def minimum_pyspark(version: str | None) -> str | None:
    """What is wrong with a version of PySpark; None where it will do.

    Args:
        version: as PySpark has it (``4.0.1``, ``4.1.0.dev3``); None where there is no PySpark.
    """
    if version is None:
        return (
            "PySpark is not installed: pip install 'pyspark-sluice[spark]', or use the Python of a cluster "
            "that brings its own"
        )
    if _major_minor(version) < _OLDEST_PYSPARK:
        return f"PySpark 4.0 or newer is needed, which has data sources in Python; this is {version}"
    return None


def check_environment(
    environment: Mapping[str, str] = os.environ, probe: Probe = probe_python
) -> Iterator[Finding]:
    """All checks, one after the other: Python, PySpark, Java, packages, and what Spark would find.

    Args:
        environment: the variables that an application would start Spark with.
        probe: asks another Python.
    """
    yield _check_python()
    yield _check_architecture()
    spark = _installed("pyspark")
    yield from _check_pyspark(spark)
    lacking = [name for name in _PACKAGES if _installed(name) is None]
    yield Finding(
        "packages",
        f"not installed: {', '.join(lacking)}" if lacking else ", ".join(map(_name_and_version, _PACKAGES)),
        not lacking,
    )
    if spark is None:
        return  # pyspark-client has no JVM, and starts no Python of its own
    yield _check_java(environment, spark)
    for name, explain, command in (
        ("Python of Spark's workers", explain_workers, worker_python(environment)),
        ("Python that Spark asks for formats", explain_lookup, lookup_python(environment)),
    ):
        problem = explain(environment, probe)
        yield Finding(name, problem or probe(command).shown, problem is None)


def _check_python() -> Finding:
    version = platform.python_version()
    is_well = sys.version_info >= _OLDEST_PYTHON
    return Finding("Python", f"{version}, {sys.executable}", is_well)


def _check_architecture() -> Finding:
    machine = platform.machine()
    is_well = machine.lower() in _ARCHITECTURES and sys.maxsize > 2**32
    text = f"{platform.system()} on {machine}"
    return Finding("architecture", text if is_well else f"{text}: 64 bits of x86 or Arm are tested", is_well)


def _check_pyspark(spark: str | None) -> Iterator[Finding]:
    client = _installed("pyspark-client")
    if spark is not None and client is not None:
        yield Finding(
            "PySpark",
            f"pyspark {spark} and pyspark-client {client} overwrite each other's files: pip uninstall both, "
            "and install the one that is needed",
            is_well=False,
        )
        return
    version = spark or client
    problem = minimum_pyspark(version)
    called = "pyspark" if spark else "pyspark-client"
    yield Finding("PySpark", problem or f"{called} {version}", problem is None)


def _check_java(environment: Mapping[str, str], spark: str) -> Finding:
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is None:
        return Finding(
            "Java", f"none found: install {_OLDEST_JAVA} or newer, or set JAVA_HOME", is_well=False
        )
    newest = _NEWEST_JAVA_BEFORE_4_2 if _major_minor(spark) < (4, 2) else None
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


def _name_and_version(distribution: str) -> str:
    return f"{distribution} {_installed(distribution)}"


def _major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
