"""How Sluice gets to a cluster: what works, and what `sluice doctor` says where it does not.

Spark is a standalone cluster of several hosts, whose Python has Sluice only where a test brings it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from integration.support.hosts import find_obstacle
from integration.support.network_cluster import WORKERS, Cluster, running_cluster
from integration.support.packed import VERSION, make_environment, pack, zip_of_sluice
from integration.support.paths import ROOT
from integration.support.producer import Producer

pytestmark = pytest.mark.cluster

SHARDS = 4
RECORDS = 400
PATIENCE = 200.0
HOSTS = WORKERS[:2]
APPLICATION = ROOT / "integration" / "support" / "shipped_application.py"
NO_SLUICE = {"PYTHONPATH": ""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if (obstacle := find_obstacle()) is not None:
        pytest.skip(f"no cluster of hosts: {obstacle}")
    # Spark as it is installed, with the archive of PySpark that it gives to any Python.
    settings = {**NO_SLUICE, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    with running_cluster(tmp_path_factory.mktemp("cluster"), settings) as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with Sluice, at the same path on all hosts."""
    return make_environment(tmp_path_factory.mktemp("with") / "environment").parent.parent


@pytest.fixture(scope="module")
def archive(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(environment, tmp_path_factory.mktemp("archive") / "environment.tar.gz")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment at the same path on all hosts that has all but Sluice."""
    return make_environment(tmp_path_factory.mktemp("bare") / "environment", version=None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where applications are started."""
    made = tmp_path / "place"
    made.mkdir()
    return made


@dataclass
class Started:
    """An application that was submitted."""

    cluster: Cluster
    producer: Producer
    target: str
    place: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.place / "log").read_text(errors="replace")

    def copied(self) -> Counter[bytes]:
        return Counter(record.data for record in self.cluster.service.model.oracle.records(self.target))

    def wait_for_copies(self) -> None:
        """Returns when it has written as many records as were put; then ends it."""
        self.wait(lambda: self.copied().total() >= self.producer.count)
        (self.place / "stop").touch()
        self.wait(lambda: "stopped as asked" in self.log)
        assert self.copied() == Counter(data for (_, _, data) in self.producer.expected().elements())

    def wait_for_end(self) -> str:
        """Returns what an application has said that has failed."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.log[-8000:]
            time.sleep(0.2)
        return self.log

    def wait(self, holds: Any) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.log[-8000:]
            assert time.monotonic() < end, self.log[-8000:]
            time.sleep(0.2)


@contextlib.contextmanager
def application(
    cluster: Cluster,
    place: Path,
    settings: Mapping[str, str],
    *submit: str,
    formats: str = "found",
    options: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    producer = Producer(cluster.service, cluster.service.create(SHARDS))
    producer.put(RECORDS)
    target = cluster.service.create(SHARDS)
    given = [f"{key}={value}" for key, value in (options or {}).items()]
    arguments = (cluster.service.endpoint, producer.stream, target, str(place), formats, *given)
    conf = ("--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false")
    with cluster.submitted(
        settings, *conf, *submit, str(APPLICATION), *arguments, directory=place
    ) as process:
        yield Started(cluster, producer, target, place, process)


def doctor(python: Path | str, place: Path, settings: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """The findings of ``sluice doctor`` that are problems, by check."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    done = subprocess.run(
        (str(python), "-m", "sluice", "doctor", "--json", *arguments),
        cwd=place,
        env={**inherited, **NO_SLUICE, "SPARK_HOME": str(Path(pyspark.__file__).parent), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return {each["check"]: each["text"] for each in json.loads(done.stdout)["findings"] if not each["ok"]}


def test_archive(cluster: Cluster, environment: Path, archive: Path, place: Path) -> None:
    """Unpacked, or linked, where the driver starts as well: everything works, agents on workers included."""
    (place / "environment").symlink_to(environment)
    settings = {"PYSPARK_PYTHON": "./environment/bin/python"}
    fan_out = {"consumerName": "reader", "agent": "workers"}
    unpacked = ("--archives", f"{archive}#environment")
    with application(cluster, place, settings, *unpacked, options=fan_out) as started:
        started.wait(lambda: any(cluster.agents(host) for host in WORKERS))
        started.producer.put(RECORDS)
        agents = [agent for host in WORKERS for agent in cluster.agents(host)]
        commands = [Path(f"/proc/{agent}/cmdline").read_text().split("\0")[0] for agent in agents]
        started.wait_for_copies()
    assert all(each.startswith(str(cluster.directory)) for each in commands), commands


def test_archive_that_the_driver_does_not_have(
    cluster: Cluster, environment: Path, archive: Path, place: Path
) -> None:
    """Executors have it, and data sources are planned on the driver host, by the same path."""
    python = environment / "bin" / "python"
    settings = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": str(python)}
    unpacked = ("--archives", f"{archive}#environment")
    with application(cluster, place, settings, *unpacked, formats="registered") as started:
        said = started.wait_for_end()
    told = f"which is not there, in {place}: executors have it from --archives"
    assert f"Spark runs data sources in './environment/bin/python', {told}" in said
    found = doctor(python, place, settings)
    assert told in found["Python of Spark's workers"]
    assert "leave PYSPARK_DRIVER_PYTHON out" in found["Python of formats that Spark finds"]


def test_py_files(cluster: Cluster, bare: Path, place: Path, tmp_path: Path) -> None:
    """Works for applications that register the formats, where hosts have what Sluice needs."""
    sent = zip_of_sluice(tmp_path / "sluice.zip")
    settings = {"PYSPARK_PYTHON": str(bare), "PYTHONPATH": str(sent)}
    with application(cluster, place, settings, "--py-files", str(sent), formats="registered") as started:
        started.wait_for_copies()


def test_py_files_that_the_driver_does_not_have(
    cluster: Cluster, bare: Path, place: Path, tmp_path: Path
) -> None:
    """That a streaming read is planned without them is Spark's; formats that are registered do not help."""
    sent = zip_of_sluice(tmp_path / "sluice.zip")
    settings = {"PYSPARK_PYTHON": str(bare)}
    with application(cluster, place, settings, "--py-files", str(sent), formats="registered") as started:
        said = started.wait_for_end()
    assert "No module named 'sluice'" in said


def test_py_files_without_registering(cluster: Cluster, bare: Path, place: Path, tmp_path: Path) -> None:
    """Spark looks for formats in a Python that is not given these files. One line says so before."""
    sent = zip_of_sluice(tmp_path / "sluice.zip")
    settings = {"PYSPARK_PYTHON": str(bare)}
    with application(cluster, place, settings, "--py-files", str(sent), formats="imported") as started:
        said = started.wait_for_end()
    assert "and gets nothing of what --py-files brings: call sluice.register(spark)" in said
    assert "DATA_SOURCE_NOT_FOUND" in said
    found = doctor(bare, place, {**settings, "PYTHONPATH": str(sent)})
    assert f"it is on the path, in {sent}, and not installed" in found["Sluice"]


def test_workers_without_sluice(cluster: Cluster, environment: Path, bare: Path, place: Path) -> None:
    """Said at once, and not by each task."""
    python = environment / "bin" / "python"
    settings = {"PYSPARK_DRIVER_PYTHON": str(python), "PYSPARK_PYTHON": str(bare)}
    with application(cluster, place, settings, formats="registered") as started:
        said = started.wait_for_end()
    assert f"which does not have Sluice: set PYSPARK_PYTHON={python} before the session starts" in said
    assert "does not have Sluice" in doctor(python, place, settings)["Python of Spark's workers"]


def test_workers_with_another_sluice(
    cluster: Cluster, environment: Path, place: Path, tmp_path: Path
) -> None:
    """The one would plan what the other reads."""
    python = environment / "bin" / "python"
    old = make_environment(tmp_path / "old", version="7.8.8")
    settings = {"PYSPARK_DRIVER_PYTHON": str(python), "PYSPARK_PYTHON": str(old)}
    with application(cluster, place, settings, formats="registered") as started:
        said = started.wait_for_end()
    assert f"which has Sluice 7.8.8, and this Python has Sluice {VERSION}" in said
    assert "has Sluice 7.8.8" in doctor(python, place, settings)["Python of Spark's workers"]
