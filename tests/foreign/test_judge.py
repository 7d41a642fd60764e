"""What `make foreign` counts, and what it says of a server that it cannot have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from integration.foreign.__main__ import run_with
from integration.foreign.course import Result, judge
from integration.foreign.rows import PER_BATCH, ROWS, Row, expected
from integration.foreign.servers import ForeignServer
from integration.foreign.target import Target

ALL = [expected(number) for number in range(ROWS)]


class Place(Target):
    """Rows in memory."""

    def __init__(self, rows: Sequence[Row], *, is_once: bool) -> None:
        super().__init__("", Path())
        self.rows = rows
        self.is_once = is_once  # type: ignore[misc]

    def prepare(self) -> dict[str, str]:
        return {}

    def read(self) -> Iterable[Row]:
        return self.rows


def judged(rows: Sequence[Row], *, is_once: bool = False) -> Result:
    result = Result("server", "1", "target")
    judge(Place(rows, is_once=is_once), {2, 3}, result)
    return result


def test_every_row_once_is_right() -> None:
    result = judged(ALL, is_once=True)
    assert (result.found, result.lost, result.doubled, result.wrong) == (ROWS, 0, 0, 0)
    assert result.problems == []


def test_a_lost_row_is_counted() -> None:
    result = judged(ALL[:-1])
    assert (result.lost, result.problems) == (1, ["1 lost"])


@pytest.mark.parametrize("change", [{"text": "other"}, {"data": b"x"}, {"more": 1}])
def test_a_changed_row_is_wrong(change: Row) -> None:
    """Also if it has a column that it should not have."""
    result = judged([*ALL[:5], ALL[5] | change, *ALL[6:]])
    assert (result.lost, result.wrong, len(result.problems)) == (0, 1, 1)


def test_a_row_that_nobody_wrote_is_wrong() -> None:
    assert judged([*ALL, expected(ROWS)]).wrong == 1


def test_only_a_batch_that_was_cut_short_may_be_there_twice() -> None:
    inside, outside = 2 * PER_BATCH, 4 * PER_BATCH
    assert judged([*ALL, ALL[inside]]).problems == []
    assert judged([*ALL, ALL[inside]]).doubled == 1
    assert judged([*ALL, ALL[outside]]).problems == ["1 doubled in batches that nothing has cut short"]
    assert judged([*ALL, ALL[inside]], is_once=True).problems == ["1 doubled"]


def test_a_server_that_cannot_be_installed_is_not_run(tmp_path: Path) -> None:
    """It has a row in the table for each of its targets, and fails the run."""

    def install() -> str:
        raise OSError("no such registry")

    server = ForeignServer("gone", "1", ("s3", "sqs"), install, lambda _installed, _port, _directory: ())
    results = run_with(server, tmp_path)
    assert [each.target for each in results] == ["s3", "sqs"]
    assert all(each.verdict == "NOT RUN: OSError: no such registry" for each in results)
