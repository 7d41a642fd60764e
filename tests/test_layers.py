"""Who may import whom. Every import counts: inside functions, under TYPE_CHECKING, by import_module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).resolve().parent.parent / "src"

SDK = ("boto3", "botocore", "s3transfer", "urllib3")
SPARK = ("pyspark", "py4j")


class Layer(NamedTuple):
    """A layer: its modules, what it may import of the project, and of the guarded packages."""

    modules: tuple[str, ...]
    project: tuple[str, ...] = ()
    guarded: tuple[str, ...] = ()


HEAVY = ("sluice.destinations", "sluice.functions", "sluice.source", "sluice.spark")
SHIMS = ("pyspark_kinesis_efo", "pyspark_async_sink", "pyspark_dynamodb_streams")
BASE = (
    "sluice.__version__",
    "sluice.errors",
    "sluice.garbage_collection",
    "sluice.hosts",
    "sluice.instants",
    "sluice.letterboxes",
    "sluice.option_kinds",
    "sluice.option_names",
    "sluice.options",
    "sluice.private_files",
    "sluice.retry",
)
BELOW_KINESIS = (*BASE, "sluice.aws", "sluice.channels", "sluice.source", "sluice.spark_settings")


def room(
    name: str,
    *others: str,
    package: str = "sluice.sink",
    outside: tuple[str, ...] = (),
    guarded: tuple[str, ...] = (),
) -> Layer:
    """A room or module of a package, and which others of it it may import besides itself."""
    inside = tuple(f"{package}.{each}" for each in (name, *others))
    return Layer(inside[:1], (*BASE, *inside, *outside), guarded)


aws = partial(room, package="sluice.aws", guarded=SDK)
AWS_ROOMS = (
    aws("regions"),
    aws("errors", "regions"),
    aws("endpoint_state"),
    aws("wire", "endpoint_state", "errors"),
    aws("calling", "endpoint_state", "errors", "regions", "wire"),
    aws("names", "calling"),
)

source = partial(room, package="sluice.source")
READ = ("model", "logs")
PLANNED = (*READ, "state", "probing", "listing")
SOURCE_ROOMS = (
    source("settings"),
    source("model"),
    source("logs", "model"),
    source("state", *READ),
    source("probing", *READ, "state"),
    source("listing", *READ, "state", "probing"),
    source("reading", *READ),
    source("reports", "model"),
    source("checks", "model"),
    source("contracts", "settings", "model", "reading", "reports", "checks"),
    source("planning", "settings", "contracts", *PLANNED),
    source("finite", "settings", "contracts", "reading"),
    # Puts a source of a log together.
    source("log_source", "settings", "contracts", *PLANNED, "planning", "reading"),
    # What users import.
    Layer(("sluice.source",), ("sluice.source",)),
)

kinesis = partial(room, package="sluice.kinesis", outside=BELOW_KINESIS, guarded=SDK)
SAID = ("options", "log", "consumers", "shared")
KINESIS_ROOMS = (
    kinesis("options"),
    kinesis("log", "options"),
    kinesis("consumers", "options", "log"),
    kinesis("shared", "options"),
    kinesis("subscriptions", "options", "log"),
    # None of these three imports another one.
    kinesis("agent", *SAID, "subscriptions"),
    kinesis("planner", *SAID),
    kinesis("task", *SAID, "subscriptions"),
    kinesis("source", *SAID, "planner", "task"),
    Layer(("sluice.kinesis",)),
)

ROWS = ("contracts", "rows", "user_code")
SINK_ROOMS = (
    room("config"),
    # Of the contracts, `Destination.is_throttling` asks the table of causes by default.
    room("rate.causes"),
    room("contracts", "config", "rate.causes"),
    # No thread, no socket, no destination.
    room("rate", "contracts"),
    room("reporting"),
    room("user_code", "contracts"),
    # A writer without Spark has rows of Arrow, and converters that may expect PySpark's schema.
    room("rows.schema", "contracts", guarded=("pyspark",)),
    room("rows", "contracts"),
    room("converters", *ROWS),
    room("letters", "contracts", "rows"),
    # Strategies are known by their contract alone.
    room("writing", *ROWS, "config", "letters", "reporting"),
    # The client of the query server; `setup` hands it the server's address.
    room(
        "shared_bucket", "contracts", "rate.token_bucket", outside=("sluice.channels", "sluice.query_server")
    ),
    room("rate_limiting_options", "config", "contracts", "rate", "shared_bucket", "user_code"),
    room("options", "config", "rate_limiting_options", "reporting", "user_code"),
    # From here on rooms are put together: a sink, the end of its epochs, its tasks.
    room(
        "setup",
        *("config", "contracts", "letters", "reporting", "shared_bucket", "user_code"),
        outside=("sluice.channels",),
    ),
    room("committing", "contracts", "reporting", "setup", "user_code"),
    room("task", *ROWS, "committing", "reporting", "setup", "writing"),
    # What users import.
    Layer(("sluice.sink",), ("sluice.sink",)),
)
# What others import by the name `sluice.sink`, or not at all.
OF_THE_SINK_ALONE = tuple(
    f"sluice.sink.{each}" for each in ("config", "contracts", "shared_bucket", "writing")
)

# The first entry that a module falls under holds. "sluice" itself is last: it holds what no other names.
LAYERS = (
    Layer(("sluice.errors",)),
    Layer(("sluice.environment",)),
    Layer(("sluice.instants",), ("sluice.errors",)),
    Layer(("sluice.private_files",)),
    Layer(("sluice.letterboxes",), ("sluice.private_files",)),
    Layer(("sluice.hosts",)),
    Layer(("sluice.option_names",)),
    Layer(("sluice.option_kinds",), ("sluice.errors", "sluice.hosts")),
    Layer(("sluice.options",), ("sluice.errors", "sluice.option_kinds", "sluice.option_names")),
    Layer(("sluice.retry",), ("sluice.errors",), ("tenacity",)),
    Layer(("sluice.spark_settings",), ("sluice.hosts",)),
    *AWS_ROOMS,
    Layer(("sluice.aws",)),
    *SOURCE_ROOMS,
    Layer(("sluice.channels",), ("sluice.errors", "sluice.channels")),
    Layer(
        ("sluice.query_server",),
        ("sluice.channels", "sluice.errors", "sluice.private_files", "sluice.query_server"),
    ),
    *SINK_ROOMS,
    *KINESIS_ROOMS,
    Layer(
        ("sluice.dynamodb_streams",), (*BASE, "sluice.aws", "sluice.dynamodb_streams", "sluice.source"), ()
    ),
    Layer(
        ("sluice.destinations.kinesis",),
        (*BASE, "sluice.aws", "sluice.kinesis.log.kpl", "sluice.sink"),
        SDK,
    ),
    # What destinations share knows none of them; a destination may not import another one: `of_its_own`.
    Layer(("sluice.destinations",), (*BASE, "sluice.aws", "sluice.sink"), SDK),
    Layer(
        ("sluice.spark",),
        (
            *BASE,
            "sluice.channels",
            "sluice.destinations",
            "sluice.dynamodb_streams",
            "sluice.environment",
            "sluice.kinesis",
            "sluice.query_server",
            "sluice.sink",
            "sluice.source",
            "sluice.spark",
            "sluice.spark_settings",
        ),
        SPARK,
    ),
    # In Spark's workers.
    Layer(
        ("sluice.functions",),
        (
            "sluice.aws.wire.mended_text",
            "sluice.dynamodb_streams.images",
            "sluice.errors",
            "sluice.functions",
            "sluice.spark",
        ),
        SPARK,
    ),
    # In the application's process; only the listener needs Spark.
    Layer(("sluice.metrics.listener",), (*BASE, "sluice.metrics"), SPARK),
    Layer(("sluice.metrics.cloudwatch",), (*BASE, "sluice.aws", "sluice.metrics"), SDK),
    Layer(("sluice.metrics",), (*BASE, "sluice.metrics", "sluice.source")),
    # Independent of Spark: its commands have to run where there is none.
    Layer(
        ("sluice.cli",),
        (
            *BASE,
            "sluice.aws",
            "sluice.cli",
            "sluice.destinations",
            "sluice.dynamodb_streams",
            "sluice.environment",
            "sluice.kinesis",
            "sluice.sink",
            "sluice.source",
        ),
    ),
    # For tests of sources that others write: no Spark, no service.
    Layer(("sluice.testing",), (*BASE, "sluice.source", "sluice.testing")),
    Layer(("sluice.__main__",), ("sluice.cli",)),
    Layer(SHIMS, ("sluice.spark",), SPARK),
    Layer(
        ("sluice",),
        (*HEAVY, "sluice.environment", "sluice.errors"),
        SPARK,
    ),
)
GUARDED = (*SDK, *SPARK, "tenacity")
PROJECT = ("sluice", *SHIMS)

# Imported at their top, these would load Spark or an SDK into every process that only wants a name.
LIGHT = ("sluice",)


def under(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def of_its_own(module: str, imported: str) -> bool:
    """Whether `imported` is `module`'s own destination, what all share, or the package of them all."""
    own = ".".join(module.split(".")[:3])
    return imported == "sluice.destinations" or under(imported, (own, "sluice.destinations.common"))


def imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that `module` imports; ``from a import b`` gives ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            above = parts[: len(parts) - node.level + is_package] if node.level else []
            start = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """What `module` imports and may not, as ``line: name``."""
    layer = next(layer for layer in LAYERS if under(module, layer.modules))
    tree = ast.parse(source)
    found = []
    for line, name in imports(tree, module, is_package=is_package):
        if under(name, GUARDED):
            allowed = under(name, layer.guarded)
        elif under(name, PROJECT):
            # `from sluice.sink import x` reads as sluice.sink.x; `import sluice` gives away everything.
            allowed = under(name, layer.project)
            if under(module, ("sluice.destinations",)) and under(name, ("sluice.destinations",)):
                allowed = of_its_own(module, name)
            if under(name, OF_THE_SINK_ALONE) and not under(module, ("sluice.sink",)):
                allowed = False
        else:
            allowed = True
        if not allowed:
            found.append(f"{line}: {name}")
    if module in LIGHT:
        top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        found += [
            f"{line}: {name} at the top"
            for line, name in imports(top, module, is_package=is_package)
            if under(name, (*HEAVY, *GUARDED))
        ]
    return found


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@pytest.mark.parametrize(("module", "path"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_a_module_imports_only_what_its_layer_may(module: str, path: Path) -> None:
    """No module of the library imports from a layer above, from its own layer, or from a foreign SDK."""
    assert violations(module, path.read_text(), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sluice.errors", "import sluice.options"),
        ("sluice.options", "from sluice import retry"),
        ("sluice.options", "from . import source"),
        ("sluice.retry", "import boto3"),
        ("sluice.source.planning.planner", "from sluice.sink import AsyncSinkWriter"),
        ("sluice.source.planning.planner", "from ..sink import AsyncSinkWriter"),
        ("sluice.source.planning.planner", "from ..kinesis.client import Client"),
        ("sluice.source.planning.planner", "import sluice"),
        ("sluice.source.planning.planner", "import tenacity"),
        ("sluice.source.planning.planner", "def late():\n    from pyspark.sql import Row"),
        (
            "sluice.sink.writing.writer",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark.sql.types",
        ),
        ("sluice.sink.writing.writer", "from botocore.exceptions import ClientError"),
        ("sluice.sink.writing.writer", "import urllib3.exceptions as http"),
        (
            "sluice.sink.writing.writer",
            "import importlib as i\ni.import_module('sluice.destinations.kinesis')",
        ),
        ("sluice.channels.acceptor", "from sluice.kinesis.shared.link import Link"),
        ("sluice.channels.channel", "from sluice.sink.contracts import Destination"),
        ("sluice.source.planning.planner", "from sluice.channels.channel import Channel"),
        ("sluice.sink.writing.writer", "from sluice.kinesis.shared.link import Link"),
        ("sluice.sink.rate.token_bucket", "from sluice.query_server.bucket import HOLD_TIME"),
        ("sluice.sink.rate.strategies", "from sluice.sink.writing.scheduler import Request"),
        ("sluice.sink.writing.scheduler", "from sluice.sink.rate.causes import cause_of"),
        ("sluice.sink.writing.scheduler", "from sluice.sink.shared_bucket.strategy import sink_of"),
        ("sluice.sink.setup", "from sluice.sink.task import write_rows"),
        ("sluice.destinations.sqs", "from sluice.sink.contracts import SubmitResult"),
        ("sluice.query_server.bucket", "from sluice.sink.contracts import RequestInfo"),
        ("sluice.kinesis.log.client", "from sluice.sink.contracts import Destination"),
        ("sluice.kinesis.log.client", "import sluice.spark.source"),
        ("sluice.dynamodb_streams.client", "from sluice.kinesis.options.streams import StreamRef"),
        ("sluice.dynamodb_streams.client", "import botocore"),
        ("sluice.kinesis.log.client", "from sluice.dynamodb_streams.client import DynamoDbStreamsLog"),
        ("sluice.kinesis.log.client", "from pyspark import TaskContext"),
        ("sluice.destinations.sqs", "from sluice.destinations.kinesis import KinesisDestination"),
        ("sluice.destinations.sqs", "from .kinesis import KinesisDestination"),
        ("sluice.destinations.common.batch_call", "from sluice.destinations.kinesis import KinesisEntry"),
        ("sluice.destinations.sqs", "from sluice.source.model.splits import Split"),
        ("sluice.aws.calling.clients", "from sluice.source.model.splits import SplitId"),
        ("sluice.aws.calling.clients", "from sluice.kinesis.options.config import SourceConfig"),
        ("sluice.destinations.sqs", "from sluice.kinesis.log.kpl.aggregator import Aggregator"),
        ("sluice.destinations.kinesis.shard_map", "from sluice.kinesis.log.client import KinesisLog"),
        ("sluice.kinesis.log.client", "from sluice.kinesis.planner.coordinator import SourceCoordinator"),
        ("sluice.kinesis.agent.agent", "from sluice.kinesis.task.publishers import AgentRecordPublisher"),
        ("sluice.kinesis.agent.agent", "from sluice.kinesis.planner import agent_client"),
        ("sluice.kinesis.planner.agent_client", "from ..agent.agent import Agent"),
        ("sluice.kinesis.planner.coordinator", "from sluice.kinesis.source import KinesisSource"),
        ("sluice.kinesis.task.publishers", "from sluice.kinesis.agent import range_server"),
        ("sluice.kinesis.shared.protocol", "from sluice.kinesis.agent import range_server"),
        ("sluice.kinesis.task.cursors", "from sluice.kinesis.planner.agent_client import AgentClient"),
        ("sluice.source.state.split_state", "from sluice.source.planning.planner import Planner"),
        ("sluice.source.reading.reader", "from sluice.source.listing.listing import Listing"),
        ("sluice.aws.wire.hooks", "from sluice.aws.calling.clients import client_for"),
        ("sluice.spark.source", "import boto3"),
        ("sluice.cli.storage", "import boto3"),
        ("sluice.cli.commands.check", "from sluice.spark.source import KinesisDataSource"),
        ("sluice.cli.commands.check", "def late():\n    import pyspark"),
        ("sluice.__main__", "import sluice.spark.source"),
        ("sluice.testing.runner", "from sluice.kinesis.source import KinesisSource"),
        ("sluice.testing.runner", "import pyspark"),
        ("sluice.spark.sink", "from botocore import session"),
        ("pyspark_async_sink", "from sluice.sink import AsyncSinkWriter"),
        ("sluice", "from sluice.spark import register"),
        ("sluice", "from sluice.destinations.files.committed_files import list_committed"),
        ("sluice", "import pyspark"),
    ],
)
def test_a_violation_is_found(module: str, source: str) -> None:
    """The rules see an import wherever it stands and however it is written."""
    assert violations(module, source, is_package=module == "sluice")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "sluice.source.planning.planner",
            "from sluice.errors import ServiceError\nfrom .splits import Split",
        ),
        ("sluice.source.planning.planner", "import pyarrow, json, sourcery, boto3_like, sluicegate"),
        (
            "sluice.kinesis.log.client",
            "import botocore\nfrom ...source.logs.stream_log import StreamLog",
        ),
        (
            "sluice.destinations.sqs",
            "from sluice.sink import SubmitResult\nfrom sluice.aws import clients",
        ),
        ("sluice.destinations.sqs.destination", "from sluice.destinations.common import BatchCall"),
        ("sluice.spark.sink", "import pyspark\nfrom sluice.destinations import kinesis"),
        ("sluice", "def register(spark):\n    from sluice.spark.source import KinesisEfoDataSource"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    """The rules do not mistake a neighbour, a standard module or a similar name for a violation."""
    assert violations(module, source, is_package=module == "sluice") == []


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("sluice.aws", AWS_ROOMS),
        ("sluice.kinesis", KINESIS_ROOMS),
        ("sluice.sink", SINK_ROOMS),
        ("sluice.source", SOURCE_ROOMS),
    ],
)
def test_rooms_have_no_circles(package: str, layers: tuple[Layer, ...]) -> None:
    """Each module has a room, imports only rooms above it in the table, and never itself through others."""
    for position, layer in enumerate(layers):
        above = {name for each in layers[:position] for name in each.modules}
        needed = {each for each in layer.project if each.startswith(f"{package}.")} - {*layer.modules}
        assert all(under(name, tuple(above)) for name in needed), layer.modules

    known = {module: path for module, path in modules() if under(module, (package,))}
    rooms = tuple(name for layer in layers for name in layer.modules if name != package)
    assert {module for module in known if not under(module, rooms)} == {package}
    graph = {
        module: {
            name if name in known else name.rpartition(".")[0]
            for _, name in imports(ast.parse(path.read_text()), module, is_package=path.name == "__init__.py")
            if under(name, (package,))
        }
        for module, path in known.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_every_module_is_seen() -> None:
    """The walk finds the library; a moved source tree would otherwise pass by being empty."""
    names = {module for module, _ in modules()}

    assert {"sluice", "sluice.options", "sluice.source.model.splits"} <= names
