"""Where the agent beside the driver listens, and where tasks find it.

Spark knows at which address executors find the driver, and tells tasks (``spark.driver.host``), but not the
planning process. So on a cluster tasks fill in the host. Whether there is a cluster can mostly be read from
the command line of the driver's JVM, which has started this process. Where it says nothing, there may be one.
Where it says ``local`` it may be out of date: a JVM stays when an application replaces its session.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice.channels.channel import SPARK_DRIVER
from sluice.channels.tls import is_tls_available
from sluice.errors import OptionError
from sluice.kinesis.fanout.launch import AgentPlace, AgentSetup, is_loopback
from sluice.kinesis.fanout_options import AGENT_ADDRESS, FanOutConfig
from sluice.options import is_unspecified

__all__ = ["SparkSettings", "check_encryption", "find_spark_settings", "place_agent"]

_log = logging.getLogger(__name__)

_LOOPBACK: Final = "127.0.0.1"
_ALL: Final = ""
_LOCAL_MASTER: Final = re.compile(r"local(\[.*\])?\Z")
_SETTING: Final = re.compile(r"(?:-D)?(spark\.[\w.]+)=(.*)", re.DOTALL)
_ANCESTORS: Final = 3
"""The JVM is the parent of this process, or that of the daemon that has forked it."""


@dataclass(frozen=True)
class SparkSettings:
    """What can be told of Spark's settings; None: that can't.

    Attributes:
        master: its URL.
        host: at which executors find the driver.
        bind: the address that the driver listens on.
    """

    master: str | None = None
    host: str | None = None
    bind: str | None = None

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


def place_agent(fan_out: FanOutConfig, spark: SparkSettings) -> AgentPlace:
    """Where to put the agent beside the driver.

    With a ``local`` master nothing else can reach it. Otherwise it listens as Spark's driver does.

    Raises:
        OptionError: the address that the user gives can't be reached from other hosts.
    """
    given, bind = fan_out.agent_address, fan_out.agent_bind_address
    if bind is not None and is_unspecified(bind):
        bind = _ALL
    if given is not None:
        if is_loopback(given) and spark.is_spread:
            raise OptionError(
                f"option '{AGENT_ADDRESS.key}' is {given!r}: tasks of other hosts can't use it, and "
                f"the master is {spark.master}: allowed is an address of the driver that they reach; left "
                "out, it is Spark's own"
            )
        return AgentPlace(given, given if bind is None else bind)
    if spark.is_local:
        return AgentPlace(bind or _LOOPBACK, _LOOPBACK if bind is None else bind, bind is None)
    if bind is None:
        return AgentPlace(SPARK_DRIVER, spark.bind or _ALL)
    return AgentPlace(bind or SPARK_DRIVER, bind)


def check_encryption(setup: AgentSetup) -> None:
    """Warns where records cross the network in clear because an extra is missing.

    Raises:
        OptionError: they have to be encrypted, and can't be.
    """
    if not setup.is_encrypted or setup.fan_out.certificate is not None or is_tls_available():
        return
    if setup.fan_out.encryption == "tls":
        raise OptionError(
            "option 'fanOutEncryption' is 'tls': agents need the extra 'tls' to make certificates (pip "
            "install 'pyspark-sluice[tls]'), or one that option 'fanOutCertificate' names"
        )
    _log.warning(
        "records cross the network in clear between fan-out agents and tasks of other hosts: install the "
        "extra 'tls' on all hosts (pip install 'pyspark-sluice[tls]'), or set option 'fanOutCertificate'; "
        "'fanOutEncryption' none leaves out this line"
    )


def find_spark_settings(
    command: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> SparkSettings:
    """What can be told of Spark's settings in the planning process.

    Args:
        command: the command line of the driver's JVM; None: it is looked up. Empty where it can't be told.
        environment: that of the driver.
    """
    if command is None:
        command = _command_of_jvm(os.getppid())
    found = {**_read_defaults(command, environment), **_read_command(command)}
    bind = found.get("spark.driver.bindAddress") or _given_address(environment)
    host = found.get("spark.driver.host") or bind
    return SparkSettings(found.get("spark.master"), host, bind)


def _given_address(environment: Mapping[str, str]) -> str | None:
    given = environment.get("SPARK_LOCAL_IP", "")
    try:
        return None if ipaddress.ip_address(given).is_unspecified else given
    except ValueError:
        return None  # not set, or a name


def _read_command(command: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for argument, value in zip(command, [*command[1:], ""], strict=False):
        if argument == "--master":
            found["spark.master"] = value
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
    try:
        ps = ("ps", "-ww", "-o", "ppid=,command=", "-p", str(pid))
        printed = subprocess.run(ps, capture_output=True, text=True, timeout=5.0, check=True)  # noqa: S603
        number, *command = printed.stdout.split()
        return int(number), command
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0, ()
