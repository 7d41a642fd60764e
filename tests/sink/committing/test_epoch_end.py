"""The end of an epoch: sums, log lines, and calls of the progress listener."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice import letterboxes
from sluice.errors import CommitError, ServiceError
from sluice.letterboxes import Letterbox
from sluice.sink import CommittingDestination, Epoch, Origin, SinkFigures, SinkProgress
from sluice.sink.committing.epoch_end import Outcome, TaskResult, end_epoch
from sluice.sink.reporting.progress import ProgressListener
from sluice.sink.setup import CommittingSinkSetup


def result(
    records: int = 10,
    *,
    query: str | None = "q",
    committables: Sequence[str] = (),
    codes: Sequence[str] = ("Throttled",),
    largest: int = 4,
    seconds: float = 0.1,
    **changes: Any,
) -> TaskResult:
    figures = SinkFigures(records=records, bytes=100, requests=2, retries=1, records_out=9, bytes_out=120)
    for code in codes:
        figures.refuse(1, {code: 1}, 1)
    figures.send_time.record(0.1)
    figures.send_time.record(seconds)
    figures.in_flight.observe(int(largest / 2) * 2, 1_000_000_000)
    figures.in_flight.observe(2, 1_000_000_000)
    figures.buffered.observe(0, 1)
    figures.destination = {"parts": 3, "largest_max": largest}
    values: dict[str, Any] = {"duration": 0.5, "limit": 40} | changes
    return TaskResult(
        origin=Origin("kinesis stream 'x'", query=query, run="r"),
        figures=figures,
        committables=tuple(committables),
        **values,
    )


class Recording(CommittingDestination[str]):
    """Notes commits and aborts, and their epochs."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, Epoch, list[str]]] = []
        self.error = error

    def create_writer(self, schema: Any, origin: Any) -> Any:
        raise NotImplementedError

    def create_committer(self, epoch: Epoch) -> Any:
        outer = self

        class Committer:
            def commit(self, committables: Sequence[str]) -> Sequence[str]:
                if outer.error:
                    raise outer.error
                outer.calls.append(("commit", epoch, list(committables)))
                return ()

            def abort(self, committables: Sequence[str]) -> None:
                outer.calls.append(("abort", epoch, list(committables)))

        return Committer()


def setup(
    destination: Recording | None = None, listener: ProgressListener | None = None
) -> CommittingSinkSetup:
    return CommittingSinkSetup(
        destination=destination or Recording(), load_listener=None if listener is None else lambda: listener
    )


def test_a_commit_logs_one_line_of_sums(caplog: pytest.LogCaptureFixture) -> None:
    """Batch id and figures of all tasks, as name=value, by the logger that the documentation names."""
    second = result(5, codes=["Internal"], largest=9, seconds=3.0, duration=2.0, limit=30)
    results = [result(), second, None]
    with caplog.at_level(logging.INFO, logger="sluice.sink"):
        end_epoch(None, "committed", results, write_id="w", batch_id=7)

    # Python may just now have found what an event loop of another test has left.
    (record,) = (each for each in caplog.records if each.name == "sluice.sink")
    assert (record.name, record.levelname) == ("sluice.sink", "INFO")
    assert record.getMessage() == (
        "committed destination=\"kinesis stream 'x'\" query_id=q batch_id=7 tasks=2 failed_tasks=1 "
        "records=15 bytes=200 requests=4 retries=2 refused=2 timeouts=0 dead_letters=0 duration=2.0 limit=30 "
        "records_out=18 bytes_out=240 send_time_p50=0.098476 send_time_p95=3.0 send_time_max=3.0 "
        "in_flight_peak=8 in_flight_mean=4.0 buffered_peak=0 buffered_mean=0.0 "
        "refused_by_code.Internal=1 refused_by_code.Throttled=1 "
        "destination_figures.largest_max=9 destination_figures.parts=6"
    )


def test_a_listener_is_called_for_every_commit_and_abort() -> None:
    """The same figures as the line, as an object and as JSON."""
    told: list[SinkProgress] = []
    made = setup(listener=told.append)
    end_epoch(made, "committed", [result(rate=100.5), result(5, rate=50.0)], write_id="w", batch_id=7)
    end_epoch(made, "aborted", [None], write_id="w", batch_id=8)
    first, second = told

    assert (first.outcome, first.batch_id, first.query_id, first.records) == ("committed", 7, "q", 15)
    assert json.loads(first.json)["rate"] == 150.5
    assert (second.outcome, second.batch_id, second.tasks, second.failed_tasks) == ("aborted", 8, 0, 1)


@pytest.mark.parametrize("kind", [OSError, SystemExit])
def test_a_listener_that_fails_does_not_fail_the_commit(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """What was written is written; the mistake is logged with its traceback. `sys.exit` is one as well."""

    def broken(_: SinkProgress) -> None:
        raise kind("no room for figures")

    end_epoch(setup(listener=broken), "committed", [result()], write_id="w", batch_id=7)

    assert "batch 7: what option 'progressListener' names has failed" in caplog.text
    assert "no room for figures" in caplog.text


def test_committables_of_all_tasks_are_committed_or_aborted() -> None:
    """With the epoch of the tasks, or of the batch write."""
    destination = Recording()
    results = [result(committables=["a", "b"]), None, result(committables=["c"])]
    end_epoch(setup(destination), "committed", results, write_id="w", batch_id=7)
    end_epoch(setup(destination), "aborted", results, write_id="w", batch_id=7)
    end_epoch(setup(destination), "committed", results, write_id="w", batch_id=None)

    assert destination.calls == [
        ("commit", Epoch("q", "r", 7), ["a", "b", "c"]),
        ("abort", Epoch("q", "r", 7), ["a", "b", "c"]),
        ("commit", Epoch(None, "w", None), ["a", "b", "c"]),
    ]


class Counted:
    """A committer, or a global one, that counts something."""

    def __init__(self, **figures: float) -> None:
        self.counted = figures

    def figures(self) -> dict[str, float]:
        return self.counted

    def commit(self, _committables: Any) -> None: ...

    def abort(self, _committables: Any) -> None: ...

    def combine(self, committables: Any) -> Any:
        return committables

    def filter_recovered_committables(self, committables: Any) -> Any:
        return committables


@pytest.mark.parametrize(
    ("outcome", "own"),
    [
        ("committed", {"parts": 5, "largest_max": 4, "manifests": 1}),
        ("aborted", {"parts": 4, "largest_max": 4}),
    ],
)
def test_figures_of_committers_are_those_of_the_epoch(outcome: Outcome, own: dict[str, float]) -> None:
    """In addition to those of the tasks, and by the same rules. An abort has no global committer."""

    class Both(Recording):
        def create_committer(self, epoch: Epoch) -> Any:  # noqa: ARG002 - the contract's
            return Counted(parts=1, largest_max=3)

        def create_global_committer(self, epoch: Epoch) -> Any:  # noqa: ARG002 - the contract's
            return Counted(manifests=1, parts=1)

    told: list[SinkProgress] = []
    end_epoch(setup(Both(), told.append), outcome, [result(committables=["a"])], write_id="w", batch_id=7)

    assert told[0].destination_figures == own


def test_a_commit_that_fails_is_not_reported_as_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    """The query fails with the reason."""
    told: list[SinkProgress] = []
    made = setup(Recording(ServiceError("no access")), told.append)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(CommitError, match="batch 7 could not be committed: no access"),
    ):
        end_epoch(made, "committed", [result(committables=["a"])], write_id="w", batch_id=7)

    assert told == []
    assert "committed destination" not in caplog.text


def test_a_stream_without_a_query_id_is_refused() -> None:
    """After a restart nobody could tell whether the batch is committed."""
    with pytest.raises(CommitError, match="did not learn from Spark which query"):
        end_epoch(setup(), "committed", [result(query=None)], write_id="w", batch_id=7)


def test_listeners_in_the_application_get_the_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By letter, with the query and the batch that they belong to."""
    monkeypatch.setattr(letterboxes, "_directory", lambda: tmp_path / "boxes")
    box = Letterbox()
    end_epoch(None, "committed", [result(), result()], write_id="w", batch_id=7)
    (letter,) = box.take()
    box.close()

    assert letter["kind"] == "sink"
    assert (letter["query_id"], letter["batch_id"], letter["records"]) == ("q", 7, 20)
    assert letter["refused_by_code"] == {"Throttled": 2}


class OfNoUse:
    """A committable's task whose figures cannot be added up."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_nothing_that_fails_after_a_commit_makes_spark_abort_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither figures nor a listener nor what posts them."""
    destination = Recording()
    broken = replace(result(committables=["a"]), figures=OfNoUse())  # type: ignore[arg-type]
    end_epoch(setup(destination), "committed", [broken], write_id="w", batch_id=7)
    assert [call for call, _, _ in destination.calls] == ["commit"]
    assert "batch 7 is committed; its figures are lost" in caplog.text

    def fail(_letter: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("sluice.sink.committing.epoch_end.post", fail)
    end_epoch(setup(destination), "committed", [result(committables=["b"])], write_id="w", batch_id=8)
    assert [call for call, _, _ in destination.calls] == ["commit", "commit"]


def test_an_epoch_says_what_its_batch_holds() -> None:
    """As the checkpoint has it; a transaction is a separate epoch."""
    destination = Recording()
    known = replace(setup(destination), content=lambda batch: f"content {batch}")
    end_epoch(known, "committed", [result(committables=["a"])], write_id="w", batch_id=7)
    assert destination.calls[-1][1] == Epoch("q", "r", 7, "content 7")

    transaction = replace(known, transaction=("app", 3))
    end_epoch(transaction, "committed", [result(committables=["a"])], write_id="w", batch_id=None)
    assert destination.calls[-1][1] == Epoch("app", "w", 3, is_transaction=True)
