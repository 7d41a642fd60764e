"""What `submit` of a destination may not return: each mistake is fatal, and named."""

from __future__ import annotations

import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sink_fakes import FakeDestination, config, fast_clock, rows

from sluice.errors import SluiceError
from sluice.sink import AsyncSinkWriter, NoRateLimitingStrategy, Rejection, SubmitResult

Submit = Callable[[Sequence[str]], Any]


class Answering(FakeDestination):
    """Calls no error fatal, and returns the result that the test sets."""

    name = "my service"

    def __init__(self, returns: Submit) -> None:
        super().__init__()
        self._returns = returns

    def submit(self, entries: Sequence[str]) -> SubmitResult[str]:
        self.requests.append([*entries])
        returned: SubmitResult[str] = self._returns(entries)
        return returned


class AnsweringLater(Answering):
    """The same on an event loop."""

    async def submit(self, entries: Sequence[str]) -> SubmitResult[str]:  # type: ignore[override]
        return super().submit(entries)


class NoLetters:
    def add(self, dead_letter: Any) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def writing(destination: Answering) -> Iterator[AsyncSinkWriter[str]]:
    writer = AsyncSinkWriter(
        destination,
        config(),
        NoRateLimitingStrategy(),
        clock=fast_clock(100),
        dead_letters=NoLetters(),
    )
    with contextlib.closing(writer):
        yield writer


NO_RESULT = "returned no SubmitResult, but {}: allowed is a SubmitResult"
FIELD = "returned a SubmitResult whose '{}' is {}: allowed is a sequence"
OTHER_ENTRIES = "names other entries than were submitted"
# mypy would find most of these.
Result: Any = SubmitResult
MISTAKES: list[tuple[Submit, str]] = [
    (lambda _: None, NO_RESULT.format("None")),
    (lambda entries: (e for e in entries), NO_RESULT.format("a value of type generator")),
    (lambda _: SubmitResult, NO_RESULT.format("a value of type type")),
    (lambda _: Result(None), FIELD.format("failed", "None")),
    (lambda entries: Result(filter(None, entries)), FIELD.format("failed", "a value of type filter")),
    (lambda entries: Result(entries[0]), FIELD.format("failed", "a value of type str")),
    (lambda entries: Result({entries[0]: "no"}), FIELD.format("failed", "a value of type dict")),
    (lambda _: Result(rejected=None), FIELD.format("rejected", "None")),
    (lambda entries: Result(rejected=[entries[0]]), "'rejected' holds a value of type str: allowed is a Rej"),
    (lambda entries: Result(entries, None), "whose 'codes' is None: allowed is a mapping of text to num"),
    (
        lambda entries: Result(entries, {"Busy": math.nan}),
        "'codes' is a value of type dict: allowed is a map",
    ),
    (
        lambda entries: Result(entries, {1: 1, "a": 1}),
        "'codes' is a value of type dict: allowed is a mapping",
    ),
    (lambda entries: Result(entries, retry_after="3"), "whose 'retry_after' is a value of type str: allowed"),
    (lambda _: Result(["another"]), OTHER_ENTRIES),
    (lambda entries: Result([*entries, entries[0]]), OTHER_ENTRIES),
    (lambda _: Result(rejected=[Rejection("another", "no")]), OTHER_ENTRIES),
    (lambda entries: Result(entries, rejected=[Rejection(entries[0], "no")]), OTHER_ENTRIES),
]


@pytest.mark.parametrize("kind", [Answering, AnsweringLater])
@pytest.mark.parametrize(("returns", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_fatal_and_says_what_is_allowed(
    kind: type[Answering], returns: Submit, message: str
) -> None:
    """At once, even if the destination calls no error fatal. No later call says that the rows are written."""
    destination = kind(returns)
    with writing(destination) as writer:
        writer.write(rows("ab"))
        for _ in range(2):
            with pytest.raises(SluiceError) as caught:
                writer.flush()

            assert str(caught.value).startswith("my service: submit returned ")
            assert message in str(caught.value)
    assert len(destination.requests) == 1
    assert writer.figures.records == 0


ALLOWED: list[Submit] = [
    tuple,
    deque,
    set,
    lambda entries: {n: each for n, each in enumerate(entries)}.values(),  # noqa: C416 - not its keys
    lambda entries: list(reversed(entries)),
]


@pytest.mark.parametrize("kind", [Answering, AnsweringLater])
@pytest.mark.parametrize("collect", ALLOWED)
def test_any_collection_of_the_entries_is_allowed(kind: type[Answering], collect: Submit) -> None:
    """In any order; codes are any mapping."""

    def refuse_once(entries: Sequence[str]) -> Any:
        if len(destination.requests) > 1:
            return SubmitResult()
        return SubmitResult(collect(entries), Counter(Busy=len(entries)), (), 0)

    destination = kind(refuse_once)
    with writing(destination) as writer:
        writer.write(rows(["entry 1", "entry 2"]))
        writer.flush()

    assert destination.requests == [["entry 1", "entry 2"]] * 2
    assert writer.figures.refused_by_code == {"Busy": 2}


def test_the_same_object_may_be_submitted_more_than_once() -> None:
    """Python may keep one object for equal texts. Each place of a refused one is named by itself."""

    def refuse_once(entries: Sequence[str]) -> Any:
        return SubmitResult(entries[1:] if len(destination.requests) == 1 else ())

    destination = Answering(refuse_once)
    destination.converter.convert = lambda batch: ["same"] * batch.num_rows  # type: ignore[method-assign, assignment, return-value]
    with writing(destination) as writer:
        writer.write(rows("abc"))
        writer.flush()

    assert destination.requests == [["same"] * 3, ["same"] * 2]
