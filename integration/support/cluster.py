"""A standalone Spark master and workers on loopback addresses, each worker as if on a separate host."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from integration.support.queries import wait_until
from integration.support.servers import LOOPBACK, leashed
from integration.support.spark import JVM_OPTIONS

HOSTS = ("127.0.0.1", "127.0.0.2")
_CORES = "2"
_MEMORY = "1g"
_START = 300.0


@contextlib.contextmanager
def standalone_cluster(hosts: Sequence[str] = HOSTS) -> Iterator[str]:
    """The URL of a master with one worker at each address; all of it ends with the ``with`` block."""
    home = Path(os.environ["SPARK_HOME"])
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-cluster-")))

        def run(name: str, host: str, ready: str, *arguments: str) -> str:
            """Returns its log, once it is ready."""
            log = f"{name}.log"
            settings = {
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": host,
                "SPARK_CONF_DIR": str(directory),
                "SPARK_DAEMON_JAVA_OPTS": os.environ.get(JVM_OPTIONS, ""),
            }
            command = (str(home / "bin" / "spark-class"), *arguments)
            process = stack.enter_context(leashed(command, directory, settings=settings, log=log))

            def is_ready() -> bool:
                text = (directory / log).read_text(errors="replace")
                assert process.poll() is None, text
                return ready in text

            wait_until(is_ready, f"{name} to start", timeout=_START)
            return (directory / log).read_text(errors="replace")

        deploy = "org.apache.spark.deploy"
        # A port that was chosen here could be another process' by the time the JVM has started.
        address = ("--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        log = run("master", LOOPBACK, "New state: ALIVE", f"{deploy}.master.Master", *address)
        (master,) = re.findall(r"Starting Spark master at (spark://\S+)", log)
        for host in hosts:
            limits = ("--cores", _CORES, "--memory", _MEMORY, "--webui-port", "0")
            place = ("--host", host, "--work-dir", os.fspath(directory / host))
            run(
                f"worker-{host}",
                host,
                "Successfully registered with master",
                f"{deploy}.worker.Worker",
                *place,
                *limits,
                master,
            )
        yield master
