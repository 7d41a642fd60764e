"""Simulated hosts on this machine with separate networks: network namespaces, joined by a bridge.

Each has an address, a name, and its own loopback interface. Its name means 127.0.1.1 on the host itself, as
Debian and Ubuntu have it, and its address elsewhere. It can lose its cable, or its power: then nothing says
good-bye to those it was connected to. Takes Linux and root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PREFIX: Final = "sluice-"
_BRIDGE: Final = "slb"
_NETNS: Final = Path("/etc/netns")
_NETWORK: Final = "198.18"
"""For tests of networks (RFC 2544): no real one has these addresses."""
_INTERFACE: Final = "eth0"
_DOMAIN: Final = "example"


def find_obstacle() -> str | None:
    """Why no hosts can be made here; None: they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux'"
    if missing := [tool for tool in ("ip", "unshare", "hostname") if shutil.which(tool) is None]:
        return f"there is no {' and no '.join(missing)} here"
    probe, bridge = f"{_PREFIX}{os.getpid()}-probe", f"{_BRIDGE}{os.getpid()}"
    steps = (
        ("ip", "netns", "add", probe),
        ("ip", "link", "add", bridge, "type", "bridge"),
        ("ip", "netns", "exec", probe, "unshare", "--uts", "hostname", "probe"),
    )
    try:
        for step in steps:
            if (tried := _try(*step)).returncode:
                return f"`{' '.join(step)}` says: {tried.stderr.strip()}"
    finally:
        _try("ip", "link", "delete", bridge)
        _try("ip", "netns", "delete", probe)
    return None


@dataclass(frozen=True)
class Host:
    name: str  # by which other hosts find it; on the host itself it means a loopback address
    address: str  # of its network interface
    namespace: str  # the name of its network namespace
    cable: str  # the other end of its network interface, at the bridge

    def command(self, *arguments: str) -> tuple[str, ...]:
        """What runs a command there."""
        named = f'hostname {self.name} && exec "$@"'
        return (
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            named,
            "sh",
            *arguments,
        )

    def pull_cable(self) -> None:
        """What is sent to it and from it is lost from now on."""
        _run("ip", "link", "set", self.cable, "down")

    def plug_cable(self) -> None:
        _run("ip", "link", "set", self.cable, "up")

    def power_off(self) -> None:
        """Everything that runs there ends. Nobody hears of it."""
        self.pull_cable()
        while running := self.processes():
            for process in running:
                _kill(process)
            time.sleep(0.02)

    def processes(self) -> list[int]:
        """The ids of all processes there, dead ones not counted."""
        return _processes(self.namespace)


@dataclass(frozen=True)
class Network:
    address: str  # of this machine, for its hosts: what listens there is the outer world
    hosts: dict[str, Host]  # by name


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """Makes hosts; at the end they are removed with all that runs there."""
    if (obstacle := find_obstacle()) is not None:
        raise RuntimeError(obstacle)
    _remove_left_over()
    tag = uuid.uuid4().hex[:5]
    subnet = f"{_NETWORK}.{int(tag[:2], 16)}"
    bridge = f"{_BRIDGE}{tag}"
    hosts = {
        name: Host(name, f"{subnet}.{number}", f"{_PREFIX}{os.getpid()}-{tag}-{name}", f"sl{number}{tag}")
        for number, name in enumerate(names, 1)
    }
    made = Network(f"{subnet}.254", hosts)
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{made.address}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for host in hosts.values():
            _make(host, made, bridge)
        yield made
    finally:
        for host in hosts.values():
            if Path("/run/netns", host.namespace).exists():
                host.power_off()
            _remove(host.namespace)
        _try("ip", "link", "delete", bridge)


def _make(host: Host, among: Network, bridge: str) -> None:
    names = [f"127.0.0.1 localhost\n127.0.1.1 {host.name}.{_DOMAIN} {host.name}\n"]
    names += [
        f"{each.address} {each.name}.{_DOMAIN} {each.name}\n"
        for each in among.hosts.values()
        if each is not host
    ]
    directory = _NETNS / host.namespace
    directory.mkdir(parents=True)
    (directory / "hosts").write_text("".join(names))
    _run("ip", "netns", "add", host.namespace)
    cable = ("ip", "link", "add", host.cable, "type", "veth")
    _run(*cable, "peer", "name", _INTERFACE, "netns", host.namespace)
    _run("ip", "link", "set", host.cable, "master", bridge, "up")
    inside = ("ip", "-netns", host.namespace)
    _run(*inside, "address", "add", f"{host.address}/24", "dev", _INTERFACE)
    _run(*inside, "link", "set", "lo", "up")
    _run(*inside, "link", "set", _INTERFACE, "up")
    _run(*inside, "route", "add", "default", "via", among.address)


def _remove(namespace: str) -> None:
    _try("ip", "netns", "delete", namespace)  # its network interface goes with it, and so does the cable
    shutil.rmtree(_NETNS / namespace, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or somebody else's
        _NETNS.rmdir()


def _remove_left_over() -> None:
    """Removes what a run has left that was killed."""
    for path in Path("/run/netns").glob(f"{_PREFIX}*"):
        owner, tag, *_ = [*path.name.removeprefix(_PREFIX).split("-"), ""]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            for process in _processes(path.name):
                _kill(process)
            _remove(path.name)
            _try("ip", "link", "delete", f"{_BRIDGE}{tag}")


def _processes(namespace: str) -> list[int]:
    found = _try("ip", "netns", "pids", namespace)
    return [int(process) for process in found.stdout.split() if not _is_dead(int(process))]


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def _is_dead(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
