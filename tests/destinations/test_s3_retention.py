"""What is below a path by epoch, and the removal of old epochs: cut short anywhere, the next one ends it."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from fake_s3 import PATH, Crash, FakeS3, Inline, bucket, committed_keys

from sluice.destinations.files.layout import Layout
from sluice.destinations.files.retention import CommittedEpoch, expire, sink_files

RUN = "run-1"


def data_key(query: str, batch: int, number: int = 0, run: str = RUN) -> str:
    return f"events/day=1/part-00000_{query}_{batch:020}_{run}_0_{number:04}.jsonl"


def lake(*committed: tuple[str, int]) -> FakeS3:
    """Epochs with two files each, the manifest written at the hour of its batch."""
    s3 = FakeS3()
    for query, batch in committed:
        files = [data_key(query, batch, number) for number in range(2)]
        s3.objects |= dict.fromkeys(files, b"row\n")
        listed = [{"path": key.removeprefix("events/"), "rows": 1, "bytes": 4} for key in files]
        manifest = {"version": 1, "query": query, "batch": batch, "run": RUN, "rows": 2, "files": listed}
        key = f"events/_sluice/{query}/{batch:020}.json"
        s3.objects[key] = json.dumps(manifest).encode()
        s3.modified[key] = datetime(2026, 1, 1, batch, tzinfo=timezone.utc)
    return s3


def epochs(s3: FakeS3) -> list[CommittedEpoch]:
    return list(sink_files(bucket(s3), Layout(PATH), executor=Inline).epochs)


def test_epochs_have_their_rows_and_their_time() -> None:
    """By query and batch, over several pages of the listing."""
    s3 = lake(("b", 0), ("a", 1), ("a", 0))

    found = epochs(s3)

    assert [(each.query, each.batch, each.rows, each.size) for each in found] == [
        ("a", 0, 2, 8),
        ("a", 1, 2, 8),
        ("b", 0, 2, 8),
    ]
    assert found[1].committed - found[0].committed == 3600 * 1_000_000


def test_files_of_no_epoch_differ_from_those_of_failed_attempts() -> None:
    """A file without a manifest may belong to a write in progress. A file that its epoch's manifest omits is
    garbage.
    """
    s3 = lake(("a", 0))
    under_way, failed = data_key("a", 1), data_key("a", 0, 7, "run-0")
    s3.objects |= {under_way: b"x", failed: b"x", "events/of-the-user.csv": b"x"}
    s3.objects["events/_sluice/a/pending/00000000000000000001_run-1-x.json"] = b"[]"

    found = sink_files(bucket(s3), Layout(PATH), executor=Inline)

    assert [each.key for each in found.uncommitted] == [under_way]
    assert found.epochs[0].orphans == (failed.removeprefix("events/"),)


def test_files_of_another_sink_below_the_path_are_none_of_this_one() -> None:
    """They are neither uncommitted nor left over, also where its checkpoint has moved from path to path."""
    s3 = lake(("a", 0), ("b", 0))
    inner = {
        key.replace("events/", "events/inner/"): body
        for key, body in lake(("a", 0), ("c", 0)).objects.items()
    }
    s3.objects |= inner

    found = sink_files(bucket(s3), Layout(PATH), executor=Inline)

    assert [(each.query, each.batch, each.orphans) for each in found.epochs] == [
        ("a", 0, ()),
        ("b", 0, ()),
    ]
    assert found.uncommitted == []
    assert expire(bucket(s3), Layout(PATH), found.epochs) == 4
    assert inner.items() <= s3.objects.items()


def test_an_epoch_that_is_removed_stays_committed() -> None:
    """Its manifest has no files, so that its batch is not written again; the others stay as they are."""
    s3 = lake(("a", 0), ("a", 1))
    s3.objects[data_key("a", 0, 7, "run-0")] = b"x"

    deleted = expire(bucket(s3), Layout(PATH), epochs(s3)[:1])

    assert deleted == 3
    assert s3.data == {data_key("a", 1, 0), data_key("a", 1, 1)}
    first, second = epochs(s3)
    assert first.manifest is not None
    assert (first.batch, first.manifest.files, first.manifest.run) == (0, (), RUN)
    assert len(second.files) == 2


@pytest.mark.parametrize("fault", ["crash-before", "crash-after"])
@pytest.mark.parametrize("call", range(1, 4))
def test_a_removal_that_is_cut_short_never_lists_a_file_that_is_gone(call: int, fault: str) -> None:
    """It may end in any call; the next removal deletes the rest."""
    s3 = lake(("a", 0))
    chosen = epochs(s3)
    begun = len(s3.calls)
    s3.fault = lambda number, _operation: fault if number == begun + call else None
    with pytest.raises(Crash):
        expire(bucket(s3), Layout(PATH), chosen)
    s3.dead, s3.fault = False, lambda _number, _operation: None

    assert set(committed_keys(s3)) <= s3.data

    expire(bucket(s3), Layout(PATH), epochs(s3))
    assert s3.data == set()
    assert committed_keys(s3) == []
