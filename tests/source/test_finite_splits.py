"""What becomes of finite splits that listings leave out, or that are replaced."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sluice.errors import DataLossError, ServiceError, SluiceError, SourceRuleError
from sluice.retry import Retrier
from sluice.source import FiniteSplit, SplitEnd, SplitSource
from sluice.source.contracts import ReadTask
from sluice.source.finite.finite_enumerator import FiniteSplitEnumerator
from sluice.source.finite.splits import FiniteRange
from sluice.source.settings import Limits, SourceSettings

HOUR = 3600.0
ONE = Limits(records=1)


class Shelf(SplitSource):
    """Splits of three parts, of one record and one byte each."""

    name = "shelf"
    counts: tuple[int, int | None] = (1, 1)
    """Size and records of a part."""

    def __init__(self, *, fails: bool = True) -> None:
        self.listed: dict[str, str] = {}
        self.places: dict[str, tuple[int, ...]] = {}
        self.listings = 0
        self.now = 0.0
        self.settings = SourceSettings(fail_on_data_loss=fails)

    @classmethod
    def from_options(cls, values: Any) -> Shelf:
        raise NotImplementedError

    def schema(self) -> pa.Schema:
        raise NotImplementedError

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def list_splits(self) -> Sequence[FiniteSplit]:
        self.listings += 1
        return [FiniteSplit(split, version=version) for split, version in self.listed.items()]

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        return [SplitEnd(place, *self.counts) for place in self.places.get(split.version, (1, 2, 3))]

    def enumerator(self) -> FiniteSplitEnumerator:
        """As after a start of the query."""
        retrier = Retrier(sleep=self.sleep, jitter=lambda: 1.0, clock=lambda: self.now)
        return FiniteSplitEnumerator(self, clock=lambda: self.now, now=lambda: self.now, retrier=retrier)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ForgettingShelf(Shelf):
    FORGETS_AFTER: ClassVar[float | None] = 24 * HOUR


Offsets = Mapping[str, Any]


def after_reading(shelf: Shelf, **listed: str) -> tuple[FiniteSplitEnumerator, Offsets]:
    """All that is listed was read."""
    shelf.listed = listed
    enumerator = shelf.enumerator()
    return enumerator, enumerator.advance(enumerator.initial())


def read(enumerator: FiniteSplitEnumerator, start: Offsets, limits: Limits) -> tuple[list[str], Offsets]:
    end = enumerator.advance(start, limits)
    return [each.split for each in enumerator.ranges(start, end)], end


@pytest.mark.parametrize(
    ("limits", "size", "records", "count"),
    [
        (Limits(bytes=1000), 0, None, 1),
        (Limits(bytes=1000), 0, 1, 1),
        (Limits(records=10), 1, None, 1),
        (Limits(records=10, bytes=1000), 1, None, 1),
        (Limits(records=10, bytes=1000), 0, 1, 1),
        (Limits(bytes=1000), 400, None, 2),
        (Limits(records=10), 0, 4, 2),
        (Limits(), 0, None, 15),
    ],
)
def test_what_is_not_known_fills_a_batch_with_a_limit_on_it(
    limits: Limits, size: int, records: int | None, count: int
) -> None:
    """Each batch has one range at least. A limit that nothing is known of would be no limit."""
    shelf = Shelf()
    shelf.counts, shelf.listed = (size, records), dict.fromkeys("abcde", "")
    enumerator = shelf.enumerator()
    assert len(read(enumerator, enumerator.initial(), limits)[0]) == count


@pytest.mark.parametrize("restarts", [False, True])
def test_a_split_is_read_once_however_long_listings_leave_it_out(restarts: bool) -> None:
    """Duplicate rows are worse than a log that grows."""
    shelf = Shelf()
    enumerator, offsets = after_reading(shelf, a="", b="")
    for days in (0, 2, 400):
        for listed in ("b", "ab"):
            shelf.now += days * 24 * HOUR + 600
            shelf.listed = dict.fromkeys(listed, "")
            if restarts:
                enumerator = shelf.enumerator()
            ids, offsets = read(enumerator, offsets, Limits())
            assert ids == []


def test_a_source_may_forget_what_never_comes_back() -> None:
    """Its log stays short. It is reckoned from the first listing without the split."""
    shelf = ForgettingShelf()
    enumerator, offsets = after_reading(shelf, a="", b="")
    sizes = []
    for hours in (1, 23, 2):
        shelf.now += hours * HOUR
        shelf.listed = {"b": ""}
        _, offsets = read(enumerator, offsets, Limits())
        sizes.append(len(offsets["splits"]))

    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("is_bounded", [False, True], ids=["streaming", "available now"])
def test_a_split_that_is_replaced_between_two_of_its_batches_is_a_data_loss(is_bounded: bool) -> None:
    """Its rest is that of another one. The listing of the batch before does not show it."""
    shelf = Shelf()
    shelf.listed = {"a": "1"}
    enumerator = shelf.enumerator()
    if is_bounded:
        enumerator.stop_at_available()
    ids, offsets = read(enumerator, enumerator.initial(), ONE)
    assert ids == ["a"]
    shelf.listed = {"a": "2"}

    with pytest.raises(DataLossError, match="split a: it was replaced, and it was read in part"):
        enumerator.advance(offsets, ONE)


def test_a_run_to_what_is_available_takes_nothing_new_when_it_lists_again() -> None:
    shelf = Shelf()
    shelf.listed = {"a": "1"}
    enumerator = shelf.enumerator()
    enumerator.stop_at_available()
    offsets, seen = enumerator.initial(), []
    for letter in "bcdefg":
        shelf.listed[letter] = "1"
        ids, offsets = read(enumerator, offsets, ONE)
        seen += ids

    assert seen == ["a"] * 3


def test_splits_are_not_listed_for_each_trigger_where_none_is_begun() -> None:
    """A listing may take a request for each thousand splits."""
    shelf = Shelf()
    enumerator, offsets = after_reading(shelf, a="1")
    for _ in range(100):
        offsets = enumerator.advance(offsets, ONE)

    assert shelf.listings == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_split_that_is_replaced_after_it_was_read_is_a_data_loss(restarts: bool) -> None:
    """Nothing would ever read what it holds now."""
    shelf = Shelf()
    enumerator, offsets = after_reading(shelf, a="1")
    shelf.listed = {"a": "2"}
    shelf.now += HOUR
    if restarts:
        enumerator = shelf.enumerator()

    with pytest.raises(DataLossError, match="split a: it was replaced, and it was read already"):
        enumerator.advance(offsets)


def test_where_loss_is_allowed_a_replaced_split_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    shelf = Shelf(fails=False)
    enumerator, offsets = after_reading(shelf, a="1", b="1")
    shelf.listed = {"a": "2", "b": "1"}
    for _ in range(3):
        shelf.now += HOUR
        offsets = enumerator.advance(offsets)

    assert [record.getMessage().partition(", and")[0] for record in caplog.records] == [
        "data loss, continuing without it: source shelf, split a: it was replaced"
    ]


@pytest.mark.parametrize("ends", [(1, 2, 3), (5, 6, 7)], ids=["same ends", "other ends"])
def test_where_loss_is_allowed_nothing_is_read_of_what_replaced_a_part(ends: tuple[int, ...]) -> None:
    """Its rest is none of the split that was begun, and its ends need not be those of it."""
    shelf = Shelf(fails=False)
    shelf.listed = {"a": "1", "b": "1"}
    enumerator = shelf.enumerator()
    _, offsets = read(enumerator, enumerator.initial(), ONE)
    shelf.listed["a"], shelf.places = "2", {"2": ends}
    end = enumerator.advance(offsets, ONE)
    for reading in (enumerator, shelf.enumerator()):
        assert [each.split for each in reading.ranges(offsets, end)] == ["b"]


GONE = ServiceError("no such key", operation="Get", target="shelf", missing=True)


class VanishingShelf(Shelf):
    """Its split b vanishes when its ends are requested, although it is listed."""

    error: Exception = GONE

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        if split.id == "b":
            raise self.error
        return super().ends(split)


@pytest.mark.parametrize("error", [GONE, FileNotFoundError("b")])
@pytest.mark.parametrize("listed", ["b", "abc"])
def test_a_split_that_goes_after_it_was_listed_is_a_data_loss(listed: str, error: Exception) -> None:
    for fails in (True, False):
        shelf = VanishingShelf(fails=fails)
        shelf.error, shelf.listed = error, dict.fromkeys(listed, "")
        enumerator = shelf.enumerator()
        if fails:
            with pytest.raises(DataLossError, match="split b: it is gone, and it was listed"):
                enumerator.advance(enumerator.initial())
        else:
            assert read(enumerator, enumerator.initial(), Limits())[0] == [*"aaaccc"][: 6 * ("a" in listed)]


def test_a_split_that_goes_before_its_batch_is_read_again_is_a_data_loss() -> None:
    shelf = Shelf(fails=False)
    enumerator = shelf.enumerator()
    shelf.listed = {"a": "", "b": ""}
    end = enumerator.advance(enumerator.initial())
    again = VanishingShelf(fails=False)
    again.listed = shelf.listed

    assert {each.split for each in again.enumerator().ranges(enumerator.initial(), end)} == {"a"}


def test_a_batch_that_is_read_again_ends_where_it_ended_or_not_at_all() -> None:
    """Otherwise it would have the rows of later batches, too."""
    shelf = Shelf()
    shelf.listed = {"a": "1"}
    enumerator = shelf.enumerator()
    _, end = read(enumerator, enumerator.initial(), ONE)
    shelf.places = {"1": (5, 6, 7)}

    with pytest.raises(SourceRuleError, match="always gives the same positions; 1, where"):
        shelf.enumerator().ranges(enumerator.initial(), end)


def test_a_source_that_adds_versions_later_resumes() -> None:
    """The log of before does not tell whether they were replaced."""
    shelf = Shelf()
    enumerator, offsets = after_reading(shelf, a="")
    shelf.listed = {"a": "1"}
    shelf.now += HOUR

    assert enumerator.advance(offsets) is offsets


# --- what fails for a reason that may pass ------------------------------------------------------------

BROKEN = ServiceError("no answer", operation="List", target="shelf", retryable=True)
DENIED = ServiceError("denied", operation="List", target="shelf")


class FailingShelf(Shelf):
    """Its listings fail until a moment, and ends of splits for a minute more."""

    def __init__(self, error: SluiceError, until: float) -> None:
        super().__init__()
        self.error, self.until = error, until
        self.listed = {"a": ""}

    def list_splits(self) -> Sequence[FiniteSplit]:
        if self.now < self.until:
            raise self.error
        return super().list_splits()

    def ends(self, split: FiniteSplit) -> Sequence[SplitEnd]:
        if self.now < self.until + 60.0:
            raise self.error
        return super().ends(split)


@pytest.mark.parametrize("is_bounded", [False, True], ids=["streaming", "available now"])
def test_planning_waits_for_what_it_cannot_do_without(is_bounded: bool) -> None:
    shelf = FailingShelf(BROKEN, until=60.0)
    enumerator = shelf.enumerator()
    if is_bounded:
        enumerator.stop_at_available()

    assert read(enumerator, enumerator.initial(), ONE)[0] == ["a"]
    assert shelf.now >= 120


@pytest.mark.parametrize(("error", "least"), [(BROKEN, 900.0), (DENIED, 0.0)])
def test_planning_ends_after_a_while_or_at_once(error: ServiceError, least: float) -> None:
    shelf = FailingShelf(error, until=1e9)
    enumerator = shelf.enumerator()
    with pytest.raises(ServiceError):
        enumerator.advance(enumerator.initial())
    assert least <= shelf.now <= least + 10


ROWS = pa.schema([("row", pa.int64())])


class BreakingShelf(Shelf):
    """Ranges of ten rows, which break off behind each of some numbers of rows, once."""

    def __init__(self, error: SluiceError, breaks: Sequence[int]) -> None:
        super().__init__()
        self.settings = SourceSettings(read_retry_duration=60.0)
        self.error, self.breaks = error, list(breaks)
        self.reads = self.closed = 0

    def schema(self) -> pa.Schema:
        return ROWS

    def read_range(self, split: FiniteRange) -> Iterator[pa.RecordBatch]:
        del split
        self.reads += 1
        end = self.breaks.pop(0) if self.breaks else 10
        try:
            for start in range(0, end, self.reads):  # batches of another size each time
                yield pa.record_batch([range(start, min(start + self.reads, end))], schema=ROWS)
            if end < 10:
                raise self.error
        finally:
            self.closed += 1


@pytest.mark.parametrize("breaks", [[], [0], [4], [0, 4, 3, 9], [9, 9, 1]])
def test_a_range_that_breaks_off_gives_each_row_once(breaks: list[int], pauses: list[float]) -> None:
    """Spark gives a task no second try in ``local[n]``."""
    shelf = BreakingShelf(BROKEN, breaks)

    batches = list(shelf.read_task(ReadTask((FiniteRange("a"), FiniteRange("b")))))

    assert [row for batch in batches for row in batch.column(0).to_pylist()] == [*range(10), *range(10)]
    assert all(batch.num_rows for batch in batches)
    assert shelf.closed == shelf.reads == 2 + len(breaks)
    assert len(pauses) == len(breaks)


@pytest.mark.parametrize("error", [DENIED, SluiceError("wrong")])
def test_a_range_that_is_wrong_for_good_fails_at_once(error: SluiceError, pauses: list[float]) -> None:
    with pytest.raises(type(error)):
        list(BreakingShelf(error, [4] * 100).read_task(ReadTask((FiniteRange("a"),))))
    assert not pauses


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those of the task; none takes time."""
    found: list[float] = []
    monkeypatch.setattr(
        "sluice.source.reading.fetcher._Fetchers._pause", lambda _, seconds: found.append(seconds)
    )
    return found
