"""A real Prometheus, where the machine has one (``apt-get install prometheus``)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3


class QueryRefusedError(ValueError):
    """Prometheus does not understand a query."""


@dataclass(frozen=True)
class Prometheus:
    url: str  # of its API

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[Any]:
        """Series with their values over time, as the API gives them."""
        asked = {"query": expression, "start": str(start), "end": str(end), "step": str(step)}
        answer = self._get("/api/v1/query_range", asked)
        if answer["status"] != "success":
            raise QueryRefusedError(answer["error"])
        value: list[Any] = answer["data"]["result"]
        return value

    def _get(self, path: str, parameters: dict[str, str]) -> Any:
        answer = urllib3.request("GET", f"{self.url}{path}", fields=parameters)
        return answer.json()

    def wait(self) -> None:
        """Returns when it serves."""
        retries = urllib3.Retry(
            600, status_forcelist=[503], backoff_factor=0.1, backoff_max=0.2, raise_on_status=False
        )
        urllib3.request("GET", f"{self.url}/-/ready", retries=retries)


@contextlib.contextmanager
def prometheus(target: str, directory: Path) -> Iterator[Prometheus]:
    """Scrapes ``host:port`` each second."""
    program = shutil.which("prometheus")
    if program is None:
        raise FileNotFoundError("prometheus is not on PATH: apt-get install prometheus")
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
        f"scrape_configs: [{{job_name: sluice, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        server.wait()
        yield server
    finally:
        process.terminate()
        process.wait()
