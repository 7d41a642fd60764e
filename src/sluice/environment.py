"""Whether Spark, started from this process, finds Sluice, and what to set if it does not.

Spark runs Python data sources in separate Python processes. Environment variables choose their Python:

- Formats that Spark finds, on workers too: ``PYSPARK_DRIVER_PYTHON``, else ``PYSPARK_PYTHON``, else
  ``python3`` (``PythonUtils.defaultPythonExec`` of Spark).
- Formats that the application registers: ``PYSPARK_PYTHON``, else ``python3`` (``SparkContext.pythonExec``).

This module needs neither PySpark nor a JVM.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "PACKAGES",
    "PYSPARK_PYTHON",
    "Probe",
    "Probed",
    "explain_found_formats",
    "explain_lookup",
    "explain_workers",
    "installed_sluice",
    "lookup_python",
    "major_minor",
    "minimum_pyspark",
    "probe_python",
    "sent_with_py_files",
    "worker_python",
]

PYSPARK_PYTHON: Final = "PYSPARK_PYTHON"
DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
_OF_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""A variable that spark-submit sets for the Python that it starts."""
_COPIES: Final = "userFiles-"
"""Prefix of the directories in which Spark stores copies of files (``SparkFiles.getRootDirectory``)."""
SHIMS: Final = ("pyspark_kinesis_efo", "pyspark_async_sink", "pyspark_dynamodb_streams")

PACKAGES: Final = (
    "boto3",
    "botocore",
    "cryptography",
    "msgspec",
    "numpy",
    "pyarrow",
    "pybase64",
    "tenacity",
    "urllib3",
)
"""The dependencies of pyproject.toml."""
_MODULES: Final = ("sluice", *SHIMS, *PACKAGES)
_TIMEOUT: Final = 30.0
"""Seconds that another Python may take to start on a busy machine."""
_OLDEST_PYSPARK: Final = (4, 0)

_PROBE: Final = """
import importlib.metadata, importlib.util, json, platform, sys
names = json.loads(sys.argv[1])
def found(name):
    try:  # a folder of that name, as in the working folder, has no origin
        return importlib.util.find_spec(name).origin is not None
    except Exception:
        return False
def installed(name):
    try:
        return importlib.metadata.version(name)
    except Exception:
        return ""
print(json.dumps({
    "path": sys.executable,
    "version": platform.python_version(),
    "architecture": platform.machine(),
    "missing": [name for name in names if not found(name)],
    "sluice": installed("pyspark-sluice"),
}))
"""


@dataclass(frozen=True)
class Probed:
    """Another Python.

    Attributes:
        command: the command that Spark calls.
        path: its executable; None if the command does not run a Python.
        version: of Python, such as ``3.12.4``.
        missing: the modules that it lacks, of Sluice and of its dependencies.
        sluice: its version of Sluice; empty if unknown.
    """

    command: str
    path: str | None = None
    version: str = ""
    architecture: str = ""
    missing: tuple[str, ...] = ()
    sluice: str = ""

    @property
    def shown(self) -> str:
        """For messages."""
        if self.path is None:
            return f"'{self.command}'"
        where = "" if self.path == self.command else f"{self.path}, "
        return f"'{self.command}' ({where}Python {self.version})"

    def problem(self, *, shims: bool = False) -> str | None:
        """Why this Python cannot run Sluice; None if it can.

        Args:
            shims: also require the modules by which Spark finds the formats.
        """
        missing = [name for name in self.missing if shims or name not in SHIMS]
        if self.path is None:
            return "does not run a Python"
        if "sluice" in missing:
            return "does not have Sluice"
        if missing:
            return f"lacks {', '.join(missing)}"
        if major_minor(self.version) != sys.version_info[:2]:
            return f"is not the Python {sys.version_info[0]}.{sys.version_info[1]} of the application"
        own = installed_sluice()
        if self.sluice and own and self.sluice != own:
            return f"has Sluice {self.sluice}, and this Python has Sluice {own}"
        return None

    @property
    def is_unpacked_elsewhere(self) -> bool:
        """Whether executors may have it from an archive: it is a relative path that does not exist here."""
        return self.path is None and _is_of_archive(self.command)


Probe = Callable[[str], Probed]


def lookup_python(environment: Mapping[str, str]) -> str:
    """The command of the Python in which Spark searches for formats."""
    return environment.get(DRIVER_PYTHON) or worker_python(environment)


def worker_python(environment: Mapping[str, str]) -> str:
    """The command of the Python that plans, reads and writes."""
    return environment.get(PYSPARK_PYTHON) or "python3"


def probe_python(command: str, search_path: Sequence[str] = (), without: Sequence[str] = ()) -> Probed:
    """Inspects a Python. Starts it, unless it is this one.

    Args:
        command: the command that Spark calls.
        search_path: more entries of its module path, such as files that Spark sends to workers.
        without: entries of this process's module path that Spark does not pass on.
    """
    path = shutil.which(command)
    if path is None:
        return Probed(command)
    if not without and Path(path).absolute().parent == Path(sys.executable).absolute().parent:
        missing = tuple(name for name in _MODULES if importlib.util.find_spec(name) is None)
        here = platform.python_version(), platform.machine(), missing, installed_sluice()
        return Probed(command, path, *here)
    environment = dict(os.environ)
    inherited = [each for each in _entries(environment) if each not in without]
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
        there = told["version"], told["architecture"], tuple(told["missing"]), told.get("sluice", "")
        return Probed(command, told["path"], *there)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return Probed(command)


def explain_workers(environment: Mapping[str, str], probe: Probe = probe_python) -> str | None:
    """What to set, in one sentence, if the Python of Spark's workers cannot run Sluice; else None."""
    probed = probe(worker_python(environment))
    if (problem := probed.problem()) is None:
        return None
    if probed.is_unpacked_elsewhere:
        return f"Spark runs data sources in {probed.shown}, {_unpack_it_here(probed.command)}"
    return (
        f"Spark runs data sources in {probed.shown}, which {problem}: set "
        f"{PYSPARK_PYTHON}={sys.executable} before the session starts"
    )


def explain_lookup(
    environment: Mapping[str, str], probe: Probe = probe_python, *, is_sent: bool = False
) -> str | None:
    """What to set, in one sentence, if Spark does not find the formats by itself; else None.

    Args:
        is_sent: whether ``--py-files`` brought this Sluice, see `sent_with_py_files`.
    """
    probed = probe(lookup_python(environment))
    if (problem := probed.problem(shims=True)) is None:
        return _link_without_blanks(probed.command) if re.search(r"\s", probed.command) else None
    if is_sent and probed.path is not None:
        return (
            f"Spark asks {probed.shown} for formats, which {problem}, and gets nothing of what --py-files "
            "brings: call sluice.register(spark), and have the file on the driver's PYTHONPATH as well, "
            "where streaming reads are planned"
        )
    if probed.is_unpacked_elsewhere:
        return f"Spark asks {probed.shown} for formats, {_unpack_it_here(probed.command)}"
    name = DRIVER_PYTHON if environment.get(DRIVER_PYTHON) else PYSPARK_PYTHON
    otherwise = ", or call sluice.register(spark) in it" if name == DRIVER_PYTHON else ""
    return (
        f"Spark asks {probed.shown} for formats, which {problem}: set "
        f"{name}={sys.executable} before the session starts{otherwise}"
    )


def _link_without_blanks(command: str) -> str:
    """Spark does not quote the command in a shell. If its path has a blank, Spark searches for no formats."""
    return (
        f"Spark searches for no formats, since '{command}' has a blank in its path: link the environment, as "
        f"by ln -s '{sys.prefix}' /tmp/environment, and set {PYSPARK_PYTHON}=/tmp/environment/bin/python "
        "before the session starts, or call sluice.register(spark) in it"
    )


def explain_found_formats(environment: Mapping[str, str]) -> str | None:
    """What to set, in one sentence, if executors may lack the Python in which Spark found the formats."""
    found, worker = environment.get(DRIVER_PYTHON), environment.get(PYSPARK_PYTHON)
    if not found or not worker or found == worker or not _is_of_archive(worker):
        return None
    return (
        f"formats that Spark has found run in '{found}' of {DRIVER_PYTHON}, also on executors, and "
        f"only formats that the application has registered run in '{worker}' of {PYSPARK_PYTHON}: unset "
        f"{DRIVER_PYTHON}, or call sluice.register(spark)"
    )


def sent_with_py_files(
    environment: Mapping[str, str] = os.environ,
    path_of_jvm: Sequence[str] | None = None,
    own: Path | None = None,
) -> Sequence[str]:
    """The path entries of ``--py-files`` and ``addPyFile`` if they include this Sluice; else none.

    Args:
        environment: of this process.
        path_of_jvm: the ``PYTHONPATH`` of the JVM that started this process; None: read it from /proc.
        own: the directory of this Sluice.
    """
    own = own or Path(__file__).parents[1]
    added: Sequence[str] = []
    if _OF_SPARK_SUBMIT in environment:
        inherited = _path_of_parent() if path_of_jvm is None else path_of_jvm
        added = [] if inherited is None else [each for each in _entries(environment) if each not in inherited]
    is_copy = any(part.startswith(_COPIES) for part in own.parts)
    return [str(own), *added] if is_copy or str(own) in added else []


def minimum_pyspark(version: str | None) -> str | None:
    """Why Sluice cannot use this version of PySpark; None if it can.

    Args:
        version: such as ``4.0.1`` or ``4.1.0.dev3``; None if PySpark is not installed.
    """
    if version is None:
        return (
            "PySpark is not installed: pip install 'pyspark-sluice[spark]', or use the Python of a cluster "
            "that brings its own"
        )
    if major_minor(version) < _OLDEST_PYSPARK:
        return f"PySpark 4.0 or newer is needed, which has data sources in Python; this is {version}"
    return None


def _unpack_it_here(command: str) -> str:
    top = Path(command).parts[0]
    return (
        f"which does not exist in {Path.cwd()}: executors have it from --archives, but Spark plans data "
        "sources on the driver host, at the same path. Unpack it here, too, or link it: "
        f"ln -s {sys.prefix} {top}"
    )


def _is_of_archive(command: str) -> bool:
    return len(Path(command).parts) > 1 and not Path(command).is_absolute()


def _entries(environment: Mapping[str, str]) -> Sequence[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _path_of_parent() -> Sequence[str] | None:
    """The ``PYTHONPATH`` of this process's parent; None if it is unknown."""
    try:
        told = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return None
    return _entries(dict(each.partition("=")[::2] for each in told.split("\0")))


def installed_sluice() -> str:
    """The installed version; empty if Sluice is on the path but not installed."""
    # The import takes 7 ms, and each of Spark's Pythons imports this module.
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version("pyspark-sluice")
    except metadata.PackageNotFoundError:
        return ""


def major_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
