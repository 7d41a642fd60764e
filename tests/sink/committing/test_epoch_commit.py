"""Committing an epoch: the order of the calls, what is tried again, and what the error says in the end."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice.errors import CommitError, OptionError, ServiceError, SluiceError
from sluice.retry import Backoff, Retrier, patient
from sluice.sink import CommittingDestination, Epoch
from sluice.sink.committing.epoch_commit import EpochCommit, is_committing

EPOCH = Epoch("q", "r", 7)
WRITE = Epoch(None, "w", None)


class Recording:
    """A destination with both committers that notes every call.

    `committed_before`: epochs that are committed already; `behave`: called with the name of a call and its
    argument; the call returns or raises what it does.
    """

    name = "recording"

    def __init__(
        self,
        *,
        committed_before: Sequence[Epoch] = (),
        behave: Callable[[str, Any], Any] = lambda _call, _with: (),
    ) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.committed_before = list(committed_before)
        self.behave = behave

    def note(self, call: str, what: Any) -> Any:
        self.calls.append((call, what))
        return self.behave(call, what)

    def create_writer(self, schema: Any, origin: Any) -> Any:
        raise NotImplementedError

    def create_committer(self, epoch: Epoch) -> Any:
        self.behave("create", epoch)
        return TaskCommitter(self, epoch)

    def create_global_committer(self, epoch: Epoch) -> Any:
        self.behave("create globally", epoch)
        return EpochCommitter(self, epoch)

    def clean_up(self, epoch: Epoch, *, committed: bool) -> None:
        self.note("clean up", (epoch.batch, committed))


class TaskCommitter:
    def __init__(self, outer: Recording, epoch: Epoch) -> None:
        self.outer = outer
        self.epoch = epoch

    def commit(self, committables: Sequence[str]) -> Sequence[str]:
        left: Sequence[str] = self.outer.note("commit", list(committables))
        return left

    def abort(self, committables: Sequence[str]) -> None:
        self.outer.note("abort", list(committables))


class EpochCommitter(TaskCommitter):
    def combine(self, committables: Sequence[str]) -> str:
        self.outer.behave("combine", committables)
        return "+".join(committables)

    def filter_recovered_committables(self, committables: Sequence[str]) -> Sequence[str]:
        self.outer.note("filter", list(committables))
        return [] if self.epoch in self.outer.committed_before else committables

    def commit(self, committables: Sequence[str]) -> Sequence[str]:
        left: Sequence[str] = self.outer.note("commit globally", list(committables))
        return left

    def end_of_input(self) -> None:
        self.outer.note("end", None)


class CommitterAlone:
    """Has no global committer, and no name."""

    def __init__(self, outer: Recording) -> None:
        self.create_committer = outer.create_committer

    def create_writer(self, schema: Any, origin: Any) -> Any:
        raise NotImplementedError


class GlobalCommitterAlone(CommitterAlone):
    def __init__(self, outer: Recording) -> None:
        self.create_global_committer = outer.create_global_committer


def commit(destination: Any, epoch: Epoch | None = EPOCH, *, retries: int = 2) -> EpochCommit:
    pauses: list[float] = []
    return EpochCommit(
        destination,
        epoch,
        retrier=Retrier(sleep=pauses.append, jitter=lambda: 0.5),
        backoff=Backoff(retries, 1.0, 10.0, 2.0),
    )


def test_the_committer_comes_before_the_global_committer() -> None:
    """Whether the epoch was committed before is asked before anything is made visible."""
    made = Recording()

    commit(made).commit(["a", "b"])
    assert made.calls == [
        ("filter", ["a+b"]),
        ("commit", ["a", "b"]),
        ("commit globally", ["a+b"]),
        ("clean up", (7, True)),
    ]


def test_an_epoch_that_was_committed_before_a_crash_is_not_committed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the new run wrote is aborted, and the commit is a success."""
    made = Recording(committed_before=[EPOCH])

    commit(made).commit(["a"])
    assert made.calls == [("filter", ["a"]), ("abort", ["a"]), ("clean up", (7, True))]
    assert "recording: batch 7 had been committed before" in caplog.text


def test_either_committer_alone_will_do() -> None:
    """Without a global committer no earlier commit is recognised; without a committer nothing is aborted."""
    made = Recording()
    commit(CommitterAlone(made)).commit(["a"])
    commit(CommitterAlone(made)).abort(["a"])
    commit(GlobalCommitterAlone(made)).commit(["b", "c"])
    commit(GlobalCommitterAlone(made)).abort(["b"])
    commit(GlobalCommitterAlone(Recording(committed_before=[EPOCH]))).commit(["d"])

    assert made.calls == [
        ("commit", ["a"]),
        ("abort", ["a"]),
        ("filter", ["b+c"]),
        ("commit globally", ["b+c"]),
    ]


def test_only_what_commit_returns_is_tried_again() -> None:
    """Until it returns nothing."""
    answers = iter([["b", "c"], ["c"], []])
    made = Recording(behave=lambda call, _: next(answers) if call == "commit" else ())
    commit(made).commit(["a", "b", "c"])

    tried = [what for call, what in made.calls if call == "commit"]
    assert tried == [["a", "b", "c"], ["b", "c"], ["c"]]


def test_attempts_are_bounded_and_the_reason_is_given() -> None:
    """The query fails, with the number of committables left; the global committer does not commit."""
    made = Recording(behave=lambda call, _: ["b"] if call == "commit" else ())
    with pytest.raises(
        CommitError,
        match=r"recording: batch 7 could not be committed after 3 attempts: 1 of 2 committables are not",
    ) as caught:
        commit(made).commit(["a", "b"])

    assert not caught.value.retryable
    assert [call for call, _ in made.calls] == ["filter", "commit", "commit", "commit"]


@pytest.mark.parametrize(
    "call", ["create", "create globally", "combine", "filter", "commit", "commit globally"]
)
@pytest.mark.parametrize("seconds", [7.0, 60.0, 800.0])
def test_an_outage_ends_no_commit(call: str, seconds: float) -> None:
    """A committer is asked again for as long as `maxRetryDuration`."""
    now = 0.0

    def sleep(pause: float) -> None:
        nonlocal now
        now += pause

    def refuse(called: str, _: Any) -> Any:
        if called == call and now < seconds:
            raise ServiceError("away", retryable=True)
        return ()

    made: Any = Recording(behave=refuse)
    retrier = Retrier(sleep, lambda: 0.5, lambda: now)
    EpochCommit(made, EPOCH, retrier=retrier, backoff=patient(900.0)).commit(["a"])

    assert seconds <= now < seconds + 5
    assert made.calls[-1] == ("clean up", (7, True))


@pytest.mark.parametrize("call", ["create", "create globally", "combine", "filter", "commit globally"])
def test_every_step_is_tried_again(call: str) -> None:
    """From the making of a committer to the global commit."""
    failures = iter([SluiceError("later", retryable=True)])

    def refuse(called: str, _: Any) -> Any:
        if called == call and (error := next(failures, None)):
            raise error
        return ()

    made = Recording(behave=refuse)
    commit(made).commit(["a"])
    assert made.calls[-1] == ("clean up", (7, True))


def test_a_mistake_in_the_committer_is_raised_as_it_is() -> None:
    """Its traceback is what helps."""

    def refuse(call: str, _: Any) -> Any:
        raise KeyError(call)

    with pytest.raises(KeyError):
        commit(Recording(behave=refuse)).commit(["a"])


def test_an_epoch_without_committables_is_not_committed() -> None:
    """What failed attempts have left behind is removed."""
    made = Recording()
    commit(made).commit([])

    assert made.calls == [("clean up", (7, True))]


def test_a_batch_write_is_the_end_of_the_input() -> None:
    """Also without rows; a streaming query has no end."""
    made = Recording()
    commit(made, WRITE).commit(["a"])
    commit(made, WRITE).commit([])
    commit(CommitterAlone(made), WRITE).commit([])

    assert [call for call, _ in made.calls] == [
        *("filter", "commit", "commit globally", "end", "clean up"),
        *("end", "clean up"),
    ]


@pytest.mark.parametrize(
    ("epoch", "outcome", "expected"),
    [
        (EPOCH, "commit", []),
        (EPOCH, "abort", []),
        (WRITE, "abort", []),
        (WRITE, "commit", ["create globally"]),
    ],
)
def test_committers_are_made_for_what_they_are_to_do(epoch: Epoch, outcome: str, expected: list[str]) -> None:
    """Without committables only the end of the input is left: making one may open a connection."""
    created: list[str] = []
    made = Recording(behave=lambda call, _: created.append(call) if call.startswith("create") else ())
    getattr(commit(made, epoch), outcome)([])

    assert created == expected


def test_an_abort_that_fails_still_cleans_up() -> None:
    """It is tried twice at most: the query waits to report its error."""

    def refuse(call: str, _: Any) -> Any:
        if call == "abort":
            raise OptionError("no client")
        return ()

    made = Recording(behave=refuse)
    with pytest.raises(CommitError, match="batch 7 could not be aborted: no client"):
        commit(made).abort(["a"])

    assert made.calls[-1] == ("clean up", (7, False))


def test_cleaning_up_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The epoch is committed, in spite of the remains of other attempts."""

    def refuse(call: str, _: Any) -> Any:
        if call == "clean up":
            raise ServiceError("no access to listings")
        return ()

    with caplog.at_level(logging.WARNING):
        commit(Recording(behave=refuse)).commit(["a"])

    assert "no access to listings" in caplog.text


class Closing(Recording):
    """Its committers can be closed."""

    def __init__(self, *, behave: Callable[[str, Any], Any] = lambda _call, _with: ()) -> None:
        super().__init__(behave=behave)
        self.open = 0

    def create_committer(self, epoch: Epoch) -> Any:
        return self._closing(super().create_committer(epoch), "committer")

    def create_global_committer(self, epoch: Epoch) -> Any:
        self.note("create", None)
        return self._closing(super().create_global_committer(epoch), "global committer")

    def _closing(self, made: Any, name: str) -> Any:
        def close() -> None:
            self.open -= 1
            self.note(f"close {name}", None)

        self.open += 1
        made.close = close
        return made


STEPS = ["create", "filter", "commit", "commit globally", "end", "abort"]


@pytest.mark.parametrize("error", [KeyError("k"), ServiceError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", STEPS)
def test_committers_are_closed_whatever_fails(step: str, error: BaseException) -> None:
    """In any step, for any reason; the first error is raised."""

    def refuse(call: str, _: Any) -> Any:
        if call == step or call.startswith("close"):
            raise error if call == step else RuntimeError("no close either")
        return ()

    made = Closing(behave=refuse)
    ended = commit(made, WRITE)
    with pytest.raises((CommitError, type(error))):
        (ended.abort if step == "abort" else ended.commit)(["a"])

    assert made.open == 0


def test_committables_of_an_unknown_epoch_are_refused() -> None:
    """No task has said which epoch they belong to."""
    with pytest.raises(CommitError, match="unknown epoch"):
        commit(Recording(), None).commit(["a"])

    commit(Recording(), None).commit([])


def test_a_destination_without_committers_is_refused() -> None:
    """Rows that nothing can make visible must not count as written."""

    class Neither(CommittingDestination[str]):
        def create_writer(self, schema: Any, origin: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(CommitError, match="Neither: batch 7 cannot be committed: it has no committer"):
        commit(Neither()).commit(["a"])

    commit(Neither()).commit([])


def test_what_makes_a_destination_two_phase() -> None:
    """An object or a class that creates a committer."""
    assert is_committing(Recording)
    assert is_committing(GlobalCommitterAlone(Recording()))
    assert not is_committing(object())


class Answering(EpochCommitter):
    """Its methods return the values that the test sets."""

    def __init__(self, outer: Recording, answers: dict[str, Any]) -> None:
        super().__init__(outer, EPOCH)
        self.answers = answers

    def filter_recovered_committables(self, committables: Sequence[str]) -> Sequence[str]:
        given: Sequence[str] = self.answers.get("filter", committables)
        return given

    def commit(self, committables: Sequence[str]) -> Sequence[str]:
        self.outer.note("commit globally", list(committables))
        given: Sequence[str] = self.answers.get("commit", [])
        return given


class RecordingAnswering(Recording):
    def __init__(self, answers: dict[str, Any]) -> None:
        super().__init__()
        self.answers = answers

    def create_global_committer(self, epoch: Epoch) -> Any:  # noqa: ARG002 - the contract's
        return Answering(self, self.answers)


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ({"filter": None}, "filter_recovered_committables returned None"),
        ({"filter": False}, "filter_recovered_committables returned a value of type bool"),
        ({"commit": False}, "commit returned a value of type bool"),
    ],
)
def test_what_a_committer_returns_is_no_guess(answers: dict[str, Any], shown: str) -> None:
    """None of `filter_recovered_committables` would have the rows removed, and the epoch count as written."""
    made = RecordingAnswering(answers)

    with pytest.raises(CommitError, match=f"recording: .*{shown}: allowed is a sequence, such as a list"):
        commit(made).commit(["a"])
    assert ("abort", ["a"]) not in made.calls


def test_what_is_left_of_an_epoch_is_committed() -> None:
    """A global committer may find that a part was committed before a crash, and return the rest."""
    made = RecordingAnswering({"filter": ["b"]})

    commit(made).commit(["a", "b"])
    assert ("commit globally", ["b"]) in made.calls
    assert ("commit globally", ["a+b"]) not in made.calls


def test_only_the_first_batch_of_a_run_can_have_been_committed_before() -> None:
    """If a later one seems to be, the checkpoint is older: its rows are not dropped."""
    run = uuid.uuid4().hex
    epochs = [Epoch("q", run, batch) for batch in (4, 5, 6)]
    destination = Recording(committed_before=[epochs[0], epochs[2]])

    commit(destination, epochs[0]).commit(["a"])  # as after a crash
    commit(destination, epochs[1]).commit(["b"])
    commit(destination, epochs[1]).commit(["b"])  # Spark may call it twice
    destination.calls.clear()
    with pytest.raises(CommitError, match="batch 6 of query q was committed before, with other contents"):
        commit(destination, epochs[2]).commit(["c"])

    assert [call for call, _ in destination.calls] == ["filter"]


def test_a_write_of_a_transaction_ends_its_input() -> None:
    """Like any batch write; once committed, its version is not committed again."""
    epoch = Epoch("app", "w", 3, is_transaction=True)
    destination = Recording()
    commit(destination, epoch).commit(["a"])
    assert ("end", None) in destination.calls

    destination = Recording(committed_before=[epoch])
    commit(destination, epoch).commit(["a"])
    assert ("abort", ["a"]) in destination.calls
    assert "commit" not in dict(destination.calls)
