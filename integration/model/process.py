"""The model in a process of its own, for tests and benchmarks that need the cores of theirs."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from integration.model.laws import Laws
from integration.model.steering import Steering
from integration.support.paths import ROOT
from integration.support.servers import leashed

_READY_TIMEOUT: Final = 60.0


@contextlib.contextmanager
def running(
    laws: Laws | None = None, *, seed: int = 0, offset: float = 0.0, drift: float = 0.0
) -> Iterator[Steering]:
    """Serves a model until the block ends, or this process does.

    `laws`: all of them where none are given; `offset`, `drift`: of its clock, see `RealClock`.
    """
    arguments = ["-m", "integration.model", f"--seed={seed}", f"--offset={offset}", f"--drift={drift}"]
    standard = Laws()
    for field in dataclasses.fields(Laws):
        value = getattr(laws or standard, field.name)
        if value != getattr(standard, field.name):
            arguments.append(f"--law={field.name}={json.dumps(value, default=dict)}")
    with (
        tempfile.TemporaryDirectory(prefix="sluice-model-") as made,
        leashed((sys.executable, *arguments), Path(made), settings={"PYTHONPATH": str(ROOT)}),
    ):
        yield Steering(_endpoint(Path(made, "log")))


def _endpoint(log: Path) -> str:
    end = time.monotonic() + _READY_TIMEOUT
    while time.monotonic() < end:
        text = log.read_text() if log.exists() else ""
        if text.startswith("http://") and text.endswith("\n") and _answers(text.strip()):
            return text.strip()
        time.sleep(0.05)
    raise TimeoutError(f"the model does not start: {log.read_text()[-2000:]}")


def _answers(endpoint: str) -> bool:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
