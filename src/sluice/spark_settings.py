"""Reads Spark's settings in the planning process, to which Spark does not pass them.

The command line of the driver's JVM, which started this process, mostly has the master URL and the address of
the driver. Without a master URL, a cluster is possible. A ``local`` one may be outdated, because the JVM
stays when an application replaces its session.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.hosts import is_loopback

__all__ = ["SparkSettings", "cores_for_tasks", "find_spark_settings"]

_LOCAL_MASTER: Final = re.compile(r"local(\[.*\])?\Z")
_LOCAL_CORES: Final = re.compile(r"local(?:\[(\*|\d+)[,\]].*)?\Z")
_SETTING: Final = re.compile(r"(?:-D)?(spark\.[\w.]+)=(.*)", re.DOTALL)
_ARGUMENTS: Final = {
    "--master": "spark.master",
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
    "--total-executor-cores": "spark.cores.max",
}
_ANCESTORS: Final = 3
"""How many ancestors of this process are searched for the JVM, which may have started a daemon that forks."""


@dataclass(frozen=True)
class SparkSettings:
    """Spark's settings; None: unknown.

    Attributes:
        master: URL of the master.
        host: the address at which executors connect to the driver.
        bind: the address that the driver listens on.
        cores: the number of cores for tasks.
    """

    master: str | None = None
    host: str | None = None
    bind: str | None = None
    cores: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether tasks certainly run in the driver's JVM."""
        return self.master is not None and _LOCAL_MASTER.match(self.master) is not None

    @property
    def is_spread(self) -> bool:
        """Whether tasks certainly run on other hosts, too."""
        is_cluster = self.master is not None and not self.master.startswith("local")
        known = [each for each in (self.host, self.bind) if each is not None]
        return is_cluster and bool(known) and not any(map(is_loopback, known))


def find_spark_settings(
    command: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> SparkSettings:
    """Reads Spark's settings in the planning process.

    Args:
        command: of the driver's JVM, empty if unknown; None: read it from the process table.
        environment: of the driver.
    """
    if command is None:
        command = _command_of_jvm(os.getppid())
    found = {**_read_defaults(command, environment), **_read_command(command)}
    bind = found.get("spark.driver.bindAddress") or _given_address(environment)
    host = found.get("spark.driver.host") or bind
    return SparkSettings(found.get("spark.master"), host, bind, _cores(found))


def _cores(settings: Mapping[str, str]) -> int | None:
    """The cores of the master, or of all executors that the settings ask for."""
    master = settings.get("spark.master", "")
    if local := _LOCAL_CORES.match(master):
        return _cores_here() if local[1] == "*" else int(local[1] or 1)
    if settings.get("spark.dynamicAllocation.enabled", "false").strip().lower() == "true":
        return None
    try:
        if master.startswith("spark://") and "spark.cores.max" in settings:
            return int(settings["spark.cores.max"])
        return int(settings["spark.executor.instances"]) * int(settings["spark.executor.cores"])
    except (KeyError, ValueError):
        return None


@functools.cache
def cores_for_tasks() -> int | None:
    """The number of cores for the tasks of this process's query; None: unknown."""
    return find_spark_settings().cores


def _cores_here() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def _given_address(environment: Mapping[str, str]) -> str | None:
    given = environment.get("SPARK_LOCAL_IP", "")
    try:
        return None if ipaddress.ip_address(given).is_unspecified else given
    except ValueError:
        return None  # not set, or a name


def _read_command(command: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for argument, value in zip(command, [*command[1:], ""], strict=False):
        if argument in _ARGUMENTS:
            found[_ARGUMENTS[argument]] = value
        elif (match := _SETTING.fullmatch(argument)) is not None:
            found[match[1]] = match[2]
    return found


def _read_defaults(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the file that SparkSubmit reads."""
    following = dict(itertools.pairwise(command))
    home = environment.get("SPARK_HOME")
    directory = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = following.get("--properties-file") or (f"{directory}/spark-defaults.conf" if directory else None)
    found: dict[str, str] = {}
    if file is not None:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                if match := re.match(r"\s*(spark\.[\w.]+)\s*[=:\s]\s*(\S.*)", line):
                    found[match[1]] = match[2].strip()
    return found


def _command_of_jvm(pid: int) -> Sequence[str]:
    for _ in range(_ANCESTORS):
        parent, command = _process(pid)
        if any(part.startswith("org.apache.spark.") for part in command):
            return command
        pid = parent
        if pid <= 1:
            break
    return ()


def _process(pid: int) -> tuple[int, Sequence[str]]:
    """The parent of a process, and its command line."""
    directory = Path(f"/proc/{pid}")
    try:
        parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        return parent, (directory / "cmdline").read_text().rstrip("\0").split("\0")
    except (OSError, ValueError, IndexError):
        pass
    import subprocess  # noqa: PLC0415 - only without /proc

    try:
        ps = ("ps", "-ww", "-o", "ppid=,command=", "-p", str(pid))
        printed = subprocess.run(ps, capture_output=True, text=True, timeout=5.0, check=True)  # noqa: S603
        number, *command = printed.stdout.split()
        return int(number), command
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, ()
