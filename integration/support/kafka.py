"""A broker of Kafka on a loopback port, from Maven Central, and what tests do with it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from integration.support.jars import JAVA, jars
from integration.support.servers import LOOPBACK, free_port, leashed

_BROKER = "org.apache.kafka:kafka_2.13:3.9.1"
_READY_TIMEOUT = 180.0
_PAUSE = 0.1  # seconds
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


class Topic:
    def __init__(self, servers: str, partitions: int = 2) -> None:
        self.name = f"topic-{uuid.uuid4().hex[:8]}"  # of the topic
        self.put_so_far: list[tuple[int, int]] = []  # partition and offset of every record
        admin: Any = KafkaAdminClient(bootstrap_servers=servers)
        admin.create_topics([NewTopic(self.name, partitions, 1)])
        admin.close()
        self._partitions = partitions
        self._producer: Any = KafkaProducer(bootstrap_servers=servers, linger_ms=5)

    def put(self, count: int) -> None:
        """Puts records to the partitions in turn."""
        begun = len(self.put_so_far)
        sent = [
            self._producer.send(
                self.name, value=f"record {begun + n}".encode(), partition=(begun + n) % self._partitions
            )
            for n in range(count)
        ]
        self._producer.flush()
        placed = [future.get(60) for future in sent]
        self.put_so_far += [(each.partition, each.offset) for each in placed]

    def close(self) -> None:
        self._producer.close()


@contextlib.contextmanager
def kafka() -> Iterator[str]:
    """Gives the address of a broker."""
    library = jars(_BROKER)
    with tempfile.TemporaryDirectory(prefix="sluice-kafka-") as made:
        directory = Path(made)
        port, controller = free_port(), free_port()
        settings = directory / "server.properties"
        settings.write_text(_settings(port, controller, directory / "data"))
        run = (JAVA, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{library}/*")
        subprocess.run(
            (*run, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings)),
            check=True,
            capture_output=True,
            timeout=_READY_TIMEOUT,
        )
        with leashed((*run, "kafka.Kafka", str(settings)), directory) as process:
            servers = f"{LOOPBACK}:{port}"
            _wait_for(port, process, directory / "log")
            yield servers


def _settings(port: int, controller: int, data: Path) -> str:
    return "\n".join(
        (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@{LOOPBACK}:{controller}",
            f"listeners=PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
            f"advertised.listeners=PLAINTEXT://{LOOPBACK}:{port}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=PLAINTEXT",
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            f"log.dirs={data}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
        )
    )


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _READY_TIMEOUT
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(KafkaError, OSError):
            # The client comes second: it leaves sockets open whose connections are refused.
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            consumer: Any = KafkaConsumer(bootstrap_servers=f"{LOOPBACK}:{port}")
            consumer.topics()
            consumer.close()
            return
        time.sleep(_PAUSE)
    raise RuntimeError(f"Kafka does not start; its log ends with:\n{log.read_text()[-2000:]}")
