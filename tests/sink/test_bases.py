"""Optional methods: where they come from if an object has them, and if it lacks them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sink_fakes import FakeDestination

from sluice.errors import SluiceError
from sluice.sink import (
    CommittingDestination,
    Destination,
    NoRateLimitingStrategy,
    RateLimitingStrategy,
    RequestInfo,
    SinkWriter,
)
from sluice.sink.user_code import adopted, destination_name


class DuckTyped:
    """A strategy with the methods of the contract, and no other."""

    max_batch_size = 7

    def register_in_flight_request(self, request: Any) -> None: ...

    def register_completed_request(self, result: Any) -> None: ...

    def should_block(self, request: Any) -> bool:  # noqa: ARG002 - the contract's
        return True


def test_what_an_object_lacks_comes_from_the_base_class() -> None:
    """And everything else from the object, as it is at that moment."""
    own = DuckTyped()
    strategy = adopted(own, RateLimitingStrategy)
    assert strategy.should_block(RequestInfo(1))
    assert strategy.delay(RequestInfo(1)) == 0.05
    assert (strategy.forget_in_flight, strategy.limit, strategy.rate) == (None, 7, None)
    assert strategy.use_clock(time.monotonic) is None
    own.max_batch_size = 5

    assert (strategy.max_batch_size, strategy.limit) == (5, 5)


def test_what_an_object_has_is_its_own() -> None:
    """Methods, properties and plain attributes; None counts as lacking."""
    own: Any = DuckTyped()
    own.delay = lambda request: request.batch_size
    own.limit = 3
    own.rate = None
    strategy = adopted(own, RateLimitingStrategy)

    assert (strategy.delay(RequestInfo(9)), strategy.limit, strategy.rate) == (9, 3, None)


class Writer(SinkWriter[Any]):
    def write(self, batch: Any) -> None: ...
    def prepare_commit(self) -> list[Any]:
        return []

    def abort(self) -> None: ...
    def close(self) -> None: ...


async def asynchronous(*_: Any) -> None: ...


def generator(*_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("base", "own", "method"),
    [
        (SinkWriter, Writer, "write"),
        (RateLimitingStrategy, DuckTyped, "should_block"),
        (Destination, object, "is_fatal"),
        (Destination, object, "ordering_key"),
    ],
)
@pytest.mark.parametrize("function", [asynchronous, generator, staticmethod(asynchronous)])
def test_a_method_that_would_not_run_is_refused(
    base: type[Any], own: type[Any], method: str, function: Any
) -> None:
    """Nobody would await it or iterate over it, and its rows would be lost without an error."""
    wrong = type("Wrong", (own,), {method: function})()
    with pytest.raises(SluiceError, match=rf"^Wrong\.{method} is (async def|a generator), and would not run"):
        adopted(wrong, base)


def test_what_may_be_asynchronous_or_a_generator_is_taken() -> None:
    """`submit` and `close` of a destination, and what returns several values."""
    destination = type("Own", (), {"submit": asynchronous, "close": asynchronous, "unpacked": generator})()
    assert adopted(destination, Destination).submit is not None
    writer = type("OwnWriter", (Writer,), {"prepare_commit": generator})()
    assert adopted(writer, SinkWriter) is writer


def test_a_property_that_fails_is_not_lacking() -> None:
    """Without its ordering key, a destination would write rows out of their order."""

    class Misspelt:
        @property
        def ordering_key(self) -> Any:
            return self.key_of  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'Misspelt' object has no attribute 'key_of'"):
        _ = adopted(Misspelt(), Destination).ordering_key


def test_the_defaults_of_the_other_contracts() -> None:
    """Each record is an entry, no order, no committers, nothing to clean up, no bytes."""
    destination = adopted(FakeDestination(), Destination)
    committing = adopted(object(), CommittingDestination)

    assert (destination.ordering_key, destination.records_in) == (None, None)
    assert list(destination.unpacked("a")) == ["a"]
    assert (committing.create_committer(None), committing.create_global_committer(None)) == (None, None)
    assert committing.clean_up(None, committed=True) is None
    assert adopted(object(), SinkWriter).bytes == 0


def test_an_object_that_inherits_is_used_as_it_is() -> None:
    """So is one that has its defaults already."""
    own = NoRateLimitingStrategy()
    completed = adopted(DuckTyped(), RateLimitingStrategy)

    assert adopted(own, RateLimitingStrategy) is own
    assert adopted(completed, RateLimitingStrategy) is completed


def test_what_the_contract_needs_is_not_made_up() -> None:
    """A missing method of the contract is missed by its name."""
    with pytest.raises(AttributeError, match="'object' object has no attribute 'should_block'"):
        adopted(object(), RateLimitingStrategy).should_block(RequestInfo(1))


def test_a_destination_without_a_name_is_called_by_its_class() -> None:
    """So is one whose name is empty."""
    named: Any = SimpleNamespace(name="kinesis stream 'x'")

    assert destination_name(named) == "kinesis stream 'x'"
    assert destination_name(FakeDestination()) == "FakeDestination"
    assert destination_name(SimpleNamespace(name="")) == "SimpleNamespace"
