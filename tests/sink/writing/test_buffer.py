"""The buffer: entries leave it in their order, whatever was put back in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.sink.writing.buffer import RequestBuffer


def filled(*sizes: int) -> RequestBuffer[int]:
    buffer: RequestBuffer[int] = RequestBuffer()
    buffer.add(list(range(len(sizes))), list(sizes), 0.0)
    return buffer


def test_a_batch_ends_before_the_entry_that_does_not_fit() -> None:
    """Records and bytes both bound a batch; an entry beyond either bound is left for the next one."""
    buffer = filled(4, 4, 4, 4)

    assert buffer.measure(10, 9) == (2, 8)
    assert buffer.measure(3, 100) == (3, 12)
    assert buffer.measure(3, 12) == (3, 12)


def test_a_single_entry_always_fits() -> None:
    """A batch is never empty, or nothing would ever be sent."""
    assert filled(50, 1).measure(5, 10) == (1, 50)


def test_a_limit_that_no_count_equals_is_a_limit() -> None:
    """A batch ends after its first entry, be it new or put back."""
    buffer = filled(1, 1, 1)
    assert buffer.measure(0, 1000) == (1, 1)
    buffer.put_back(buffer.take(3).items)
    assert buffer.measure(0, 1000) == (1, 1)


def test_the_size_of_the_next_entries() -> None:
    """Of those that were put back, and of the new ones behind them."""
    buffer = filled(1, 2, 4, 8)
    buffer.add([4, 5], [16, 32], 0.0)
    buffer.put_back(buffer.take(2).items)

    assert [buffer.measure(count, 1000)[1] for count in range(1, 7)] == [1, 3, 7, 15, 31, 63]


def test_entries_put_back_are_ahead_of_the_rest_in_their_old_order() -> None:
    """Answers come in any order; entries are put back by their number."""
    buffer = filled(*[1] * 9)
    first, second = buffer.take(3).items, buffer.take(3).items
    buffer.put_back([second[0], second[2]])
    buffer.put_back([first[1]])

    assert list(buffer.take(6)) == [1, 3, 5, 6, 7, 8]
    assert len(buffer) == 0
    assert buffer.size_in_bytes == 0


def test_a_batch_may_end_inside_a_chunk() -> None:
    """Entries are kept in the chunks in which they were added; batches end where their bounds are."""
    buffer = filled(1, 2, 3, 4)
    buffer.add([4, 5], [5, 6], 1.0)
    first, second, third = buffer.take(1), buffer.take(4), buffer.take(1)

    assert [list(batch) for batch in (first, second, third)] == [[0], [1, 2, 3, 4], [5]]
    assert [batch.size for batch in (first, second, third)] == [1, 14, 6]
    assert [(item.number, item.size, item.arrived) for item in second.items] == [
        (1, 2, 0.0),
        (2, 3, 0.0),
        (3, 4, 0.0),
        (4, 5, 1.0),
    ]
    assert len(buffer) == buffer.size_in_bytes == 0


def test_an_entry_that_is_put_back_keeps_its_age() -> None:
    """The head is the oldest entry, so the time in the buffer counts from its first arrival."""
    buffer: RequestBuffer[str] = RequestBuffer()
    buffer.add(["a"], [1], 5.0)
    taken = buffer.take(1).items
    buffer.add(["b"], [1], 9.0)
    buffer.put_back(taken)

    head = buffer.head()
    assert head is not None
    assert (head.entry, head.arrived) == ("a", 5.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 6), st.lists(st.booleans(), max_size=12)), max_size=20
    )
)
def test_order_and_size_hold_whatever_is_taken_and_put_back(steps: list[tuple[int, int, list[bool]]]) -> None:
    """Nothing is lost, the head has the lowest number, and bytes add up."""
    buffer: RequestBuffer[int] = RequestBuffer()
    out: dict[int, int] = {}
    added = 0
    for more, taken, back in steps:
        buffer.add(list(range(added, added + more)), [1] * more, 0.0)
        added += more
        items = buffer.take(min(taken, len(buffer))).items
        numbers = [item.number for item in items]
        assert numbers == sorted(numbers)
        kept = buffer.head()
        assert kept is None or not numbers or numbers[-1] < kept.number
        out |= {item.number: item.size for item in items}
        returned = [item for item, again in zip(items, back, strict=False) if again]
        buffer.put_back(returned)
        for item in returned:
            del out[item.number]
        assert buffer.size_in_bytes == len(buffer) == added - len(out)
