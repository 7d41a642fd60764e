"""What a run of chaos counts: each kind of wrong that there is, it finds."""

from __future__ import annotations

from collections.abc import Sequence

from integration.chaos.oracle import Copies, Files, Row, count_copies, count_rows, order_data

RUN, NEXT = "0.0", "1.0"


def copy(key: str, number: int, run: str = RUN, made: str = "1") -> bytes:
    return order_data(key, number, 3) + f"|{run}|{made}".encode()


def copies(*data: bytes, batch: int | None = 4, told: Sequence[int] = ()) -> Copies:
    """The count of two orders; `told`: the places of the copies that were acknowledged."""
    numbered = [(str(place), each) for place, each in enumerate(data)]
    unknown = {str(place) for place in range(len(data)) if place not in told}
    return count_copies({"a": 2}, numbered, lambda _: batch, unknown)


def test_all_is_well() -> None:
    found = copies(copy("a", 0), copy("a", 1))
    assert (found.put, found.copied, found.lost, found.foreign) == (2, 2, 0, 0)
    assert found.repeated.total() == 0
    assert found.is_right


def test_an_order_that_was_not_copied_is_lost() -> None:
    found = copies(copy("a", 1))
    assert found.lost == 1
    assert not found.is_right
    assert found.examples == ["lost: 1 orders of a, the first is 0"]


def test_what_nobody_put_is_foreign() -> None:
    """A number too high, an unknown key, and data that are no copy at all."""
    found = copies(copy("a", 0), copy("a", 1), copy("a", 2), copy("b", 0), b"damaged", b"a:0:|0.0")
    assert found.foreign == 4
    assert not found.is_right


def test_copies_tell_why_they_were_made() -> None:
    """The same row sent again, another attempt in the same run, and another run."""
    found = copies(copy("a", 0), copy("a", 0), copy("a", 0, made="2"), copy("a", 0, NEXT), copy("a", 1))
    assert {why: count for why, count in found.repeated.items() if count} == {
        ("request", (0, 0)): 1,
        ("task", (0, 0)): 1,
        ("batch", (1, 0)): 1,
    }
    assert found.batches[1, 0] == {4}
    assert found.is_right


def test_acknowledged_records_are_not_sent_again() -> None:
    """One copy of a row has to be acknowledged; with two of them one was needless."""
    data = (copy("a", 0), copy("a", 0), copy("a", 1))
    assert copies(*data, told=(1, 2)).is_right
    found = copies(*data, told=(0, 1, 2))
    assert (found.needless, found.is_right) == (1, False)


def test_a_run_may_repeat_one_batch_alone() -> None:
    """What had been committed must not come again."""
    data = [copy("a", number, run) for number in (0, 1) for run in (RUN, NEXT)]
    numbered = [(str(place), each) for place, each in enumerate(data)]
    found = count_copies({"a": 2}, numbered, lambda order: order.number, ())
    assert found.unexplained == [(1, 0)]
    assert not found.is_right


def test_copies_of_a_batch_that_is_in_no_log_are_not_explained() -> None:
    found = copies(copy("a", 0), copy("a", 0, NEXT), copy("a", 1), batch=None)
    assert not found.is_right


def files(*batches: Sequence[Sequence[Row]]) -> Files:
    return count_rows({"s": ["1", "2", "30"]}, enumerate(batches))


def row(number: str, key: str = "a", shard: str = "s") -> Row:
    return Row(shard, number, key)


def test_all_rows_are_there_once() -> None:
    found = files([[row("1"), row("2")]], [[row("30")]])
    assert (found.rows, found.lost, found.doubled, found.foreign, found.disordered) == (3, 0, 0, 0, 0)
    assert found.is_right


def test_a_record_in_no_file_is_lost() -> None:
    found = files([[row("1")]], [[row("30")]])
    assert (found.lost, found.is_right) == (1, False)


def test_a_record_in_two_files_is_doubled() -> None:
    """In one batch or in two."""
    assert files([[row("1"), row("2")], [row("2")]], [[row("30")]]).doubled == 1
    found = files([[row("1"), row("2")]], [[row("2"), row("30")]])
    assert (found.doubled, found.is_right) == (1, False)


def test_a_row_of_no_record_is_foreign() -> None:
    found = files([[row("1"), row("2"), row("30"), row("4"), row("1", shard="t")]])
    assert (found.foreign, found.is_right) == (2, False)


def test_the_rows_of_a_key_are_in_the_order_of_the_stream() -> None:
    """Within a file and from batch to batch, as numbers; other keys and files of one batch do not count."""
    assert files([[row("30"), row("2")]], [[row("1", "b")]]).disordered == 1
    assert files([[row("30")]], [[row("2"), row("1", "b")]]).disordered == 1
    assert files([[row("30"), row("2", "b")], [row("1")]]).is_right
