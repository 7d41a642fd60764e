"""Servers, streams and Spark for the integration tests. A server that does not start fails its tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import integration.support.hypothesis_profile  # noqa: F401 - loads it
from integration.model import KinesisModel, RealClock
from integration.model.server import ModelServer, serving
from integration.support import left_to_soak, servers
from integration.support.fan_out import MARK
from integration.support.kinesis import Streams
from integration.support.model_streams import LAWS, ModelStreams
from integration.support.queries import PUBLISHERS, published_by
from integration.support.servers import FaultProxy, Server
from integration.support.spark import JVM_OPTIONS, SPARK_VERSION, Sessions, prepare_environment, stop_queries

# The modules that take longest, in this order: they go first, so that no process is left alone with one.
_LONGEST = ("soak", "data_loss", "laws", "s3", "replay", "source", "reshard", "query_bucket", "pipelines")

prepare_environment()
os.environ[MARK] = uuid.uuid4().hex  # before the JVM starts
# The quick compiler alone: a JVM that is not there for long takes half of the CPU.
os.environ[JVM_OPTIONS] = "-XX:TieredStopAtLevel=1"

# PySpark before 4.2 leaves the sockets of `collect` to the garbage collector.
_LEFT_OPEN = "ignore:unclosed <socket:ResourceWarning"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left_to_soak.mark(items)
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    places = {f"test_{name}.py": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)) if item in ours else -1)
    if SPARK_VERSION < (4, 2):
        for item in ours:
            item.add_marker(pytest.mark.filterwarnings(_LEFT_OPEN))


@pytest.fixture(scope="session")
def model_server() -> Iterator[ModelServer]:
    with serving(LAWS) as server:
        yield server


@pytest.fixture(scope="module")
def module_service(model_server: ModelServer) -> ModelStreams:
    """A service under all laws, for streams that the tests of a module share."""
    model_server.serve(KinesisModel(LAWS, RealClock()))
    return ModelStreams(model_server)


@pytest.fixture
def service(module_service: ModelStreams) -> Iterator[ModelStreams]:
    """A service under all laws, without faults."""
    yield module_service
    module_service.reset()


@pytest.fixture(scope="session")
def ministack() -> Iterator[Server]:
    """Kinesis for the plain path: no resharding."""
    with servers.ministack() as server:
        yield server


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[Server]:
    """Kinesis with resharding and 56-digit sequence numbers; slow."""
    settings = {
        "CREATE_STREAM_DURATION": "50ms",
        "DELETE_STREAM_DURATION": "50ms",
        "MERGE_SHARDS_DURATION": "50ms",
        "SPLIT_SHARD_DURATION": "50ms",
        "UPDATE_SHARD_COUNT_DURATION": "50ms",
        "SHARD_LIMIT": "1000",
    }
    with servers.kinesis_local(settings) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    """Firehose, DynamoDB, SQS, S3 and STS."""
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def streams(ministack: Server) -> Streams:
    return Streams(ministack.endpoint)


@pytest.fixture(scope="session")
def resharding_streams(kinesis_local: Server) -> Streams:
    return Streams(kinesis_local.endpoint)


@pytest.fixture
def ministack_faults(ministack: Server) -> Iterator[FaultProxy]:
    """A fault proxy before `ministack`, with no rules yet."""
    with servers.fault_proxy(ministack.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    sessions = Sessions(tmp_path_factory.mktemp("spark"))
    yield sessions
    sessions.stop()


@pytest.fixture
def make_spark(spark_sessions: Sessions) -> Iterator[Callable[..., SparkSession]]:
    """`Sessions.get`: ``make_spark({"spark.x": "y"}, master="local[2,4]")``. Stops the queries at the end."""
    made: list[SparkSession] = []

    def make(settings: dict[str, str] | None = None, *, master: str = "local[2]") -> SparkSession:
        made.append(spark_sessions.get(settings, master=master))
        return made[-1]

    yield make
    if made:
        stop_queries(made[-1])


@pytest.fixture
def spark(make_spark: Callable[..., SparkSession]) -> SparkSession:
    """A session on two cores, the same for all tests that do not ask for another one."""
    return make_spark()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A checkpoint directory that is not there yet."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def driver_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """What the driver's JVM, the process that plans and its agent write to standard error meanwhile."""
    file = tmp_path / "driver.log"
    jvm: Any = spark._jvm
    before = jvm.java.lang.System.err
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(str(file)))
    yield file
    jvm.java.lang.System.setErr(before)


@pytest.fixture(params=list(PUBLISHERS))
def publisher(request: pytest.FixtureRequest) -> Iterator[str]:
    """For tests of what holds however records are had: each runs by polling, and by fan-out."""
    with published_by(request.param):
        yield request.param
