"""Objects of users: optional members have defaults, even if the class does not inherit from a contract."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from sink_fakes import FakeDestination, async_setup, rows

from sluice.errors import SluiceError
from sluice.sink import (
    CommittingDestination,
    Destination,
    NoRateLimitingStrategy,
    Origin,
    RateLimitingStrategy,
    RequestInfo,
    SinkWriter,
)
from sluice.sink.setup import CommittingSinkSetup
from sluice.sink.task import check_columns, write_rows
from sluice.sink.user_code.loading import adopted

SCHEMA = StructType([StructField("data", StringType())])
ORIGIN = Origin("fake", query="q", run="r", batch=3, partition=2, attempt=5)


class DuckTyped:
    """A strategy with the methods of the contract, and no other."""

    max_batch_size = 7

    def register_in_flight_request(self, request: Any) -> None: ...

    def register_completed_request(self, result: Any) -> None: ...

    def should_block(self, request: Any) -> bool:  # noqa: ARG002 - the contract's
        return True


def test_what_an_object_lacks_is_the_default() -> None:
    """And everything else is the object's, as it is at that moment; None counts as lacking."""
    own: Any = DuckTyped()
    strategy = adopted(own, RateLimitingStrategy)
    assert strategy.should_block(RequestInfo(1))
    assert strategy.delay(RequestInfo(1)) == 0.05
    assert (strategy.forget_in_flight, strategy.limit, strategy.rate) == (None, 7, None)
    assert strategy.use_clock(time.monotonic) is None

    own.max_batch_size = 5
    assert (strategy.max_batch_size, strategy.limit) == (5, 5)
    own.delay = lambda request: request.batch_size
    own.limit = 3
    own.rate = own.max_batch_size_in_bytes = None
    assert (strategy.delay(RequestInfo(9)), strategy.limit, strategy.rate) == (9, 3, None)
    assert strategy.max_batch_size_in_bytes == 2**63 - 1


def test_the_defaults_of_the_other_contracts() -> None:
    """Each record is an entry, no order, no committers, nothing to clean up, no bytes, no figures."""
    destination = adopted(object(), Destination)
    committing = adopted(object(), CommittingDestination)
    writer = adopted(object(), SinkWriter)

    assert (destination.ordering_key, destination.records_in, destination.close()) == (None, None, None)
    assert (list(destination.unpacked("a")), destination.figures()) == (["a"], {})
    assert (committing.create_committer(None), committing.create_global_committer(None)) == (None, None)
    assert committing.clean_up(None, committed=True) is None
    assert (writer.bytes, writer.known_columns, writer.figures()) == (0, None, {})


# --- methods that would not run ---------------------------------------------------------------------------


async def asynchronous(*_: Any) -> None: ...


def generator(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("function", [asynchronous, generator, staticmethod(asynchronous)])
@pytest.mark.parametrize(
    ("inherited", "method"),
    [
        (FakeDestination, "is_fatal"),
        (FakeDestination, "create_converter"),
        (FakeDestination, "ordering_key"),
        (NoRateLimitingStrategy, "should_block"),
        (DuckTyped, "register_in_flight_request"),
        (NoRateLimitingStrategy, "register_completed_request"),
        (CommittingDestination, "create_writer"),
        (CommittingDestination, "create_committer"),
        (object, "clean_up"),
    ],
)
def test_a_method_that_would_not_run_is_refused_at_the_start(
    inherited: type[Any], method: str, function: Any
) -> None:
    """Nobody would await it or iterate over it, and its rows would be lost without an error."""
    wrong: Any = type("Wrong", (inherited,), {"create_writer": None, method: function})
    setup: Any = async_setup()
    if inherited is FakeDestination:
        setup = async_setup(wrong())
    elif inherited in (NoRateLimitingStrategy, DuckTyped):
        setup = async_setup(create_strategy=wrong)
    else:
        setup = CommittingSinkSetup(destination=wrong())
    with pytest.raises(SluiceError, match=rf"^Wrong\.{method} is (async def|a generator), and would not run"):
        check_columns(setup, SCHEMA, ORIGIN)
    assert inherited is not FakeDestination or setup.destination.closed == 1


def test_what_may_be_asynchronous_or_a_generator_is_taken() -> None:
    """`submit` and `close` of a destination, and what returns several values."""
    destination = type("Own", (), {"submit": asynchronous, "close": asynchronous, "unpacked": generator})()
    assert adopted(destination, Destination).submit is not None
    writer = type("OwnWriter", (), {"prepare_commit": generator})()
    assert adopted(writer, SinkWriter).prepare_commit is not None


# --- what a converter receives --------------------------------------------------------------------------


def opened_with(open_: Any) -> list[Any]:
    """What `open` of a converter is called with, where the query starts and in a task."""
    calls: list[Any] = []
    converter = type("Own", (), {"open": open_(calls), "convert": lambda _, batch: batch[0].to_pylist()})
    setup = async_setup(create_converter=converter)
    check_columns(setup, SCHEMA, Origin("fake"))
    write_rows(setup, SCHEMA, ORIGIN, [rows("ab")], write_id=None)
    return calls


@pytest.mark.parametrize(
    "open_",
    [
        lambda calls: lambda _, schema, origin: calls.append((schema, origin)),
        lambda calls: lambda _, schema, task: calls.append((schema, task)),
        lambda calls: lambda _, schema, origin=None: calls.append((schema, origin)),
        lambda calls: lambda _, schema, *, origin: calls.append((schema, origin)),
    ],
)
def test_a_converter_knows_its_task(open_: Any) -> None:
    """Where the query starts there is no task."""
    assert opened_with(open_) == [(SCHEMA, Origin("fake")), (SCHEMA, ORIGIN)]
