"""What tasks tell the planning process: over real sockets of this host, in one process."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sluice.source.model.read_figures import ReadFigures, SplitFigures
from sluice.source.model.splits import SplitId
from sluice.source.reports import task_reports
from sluice.source.reports.task_reports import ReportAddress, TaskReports, send_report

SPLITS = [SplitId("a-stream-" * 14, f"shardId-{number:012}") for number in range(20)]


def read(splits: list[SplitId], records: int = 10) -> ReadFigures:
    """What a task has read."""
    figures = ReadFigures()
    for split in splits:
        figures.count_page(split, records, records * 100, is_pushed=False)
        figures.count_call(split, refused=1, retries=2)
    return figures


@pytest.fixture
def figures() -> ReadFigures:
    return ReadFigures()


@pytest.fixture
def reports(figures: ReadFigures) -> Iterator[TaskReports]:
    made = TaskReports(figures)
    yield made
    made.close()


def begin(reports: TaskReports, tasks: int) -> ReportAddress:
    address = reports.begin_batch(tasks)
    assert address is not None
    return address


def test_all_shards_of_all_tasks_are_added_up(reports: TaskReports, figures: ReadFigures) -> None:
    """Also if a task reads more shards than fit into a datagram."""
    address = begin(reports, 3)  # one never reports: unknown figures must not count as zero
    send_report(address.of_partition(0), read(SPLITS[:19]), is_complete=True)
    send_report(address.of_partition(1), read(SPLITS[19:]), is_complete=True)
    reports.receive()

    assert (reports.tasks, reports.reported) == (3, 2)
    assert figures.splits() == dict.fromkeys(SPLITS, SplitFigures(10, 0, 1000, 1, 2))
    assert reports.last_batch() == figures.splits()


def test_tasks_of_other_hosts_report_to_where_they_find_the_driver(figures: ReadFigures) -> None:
    """The planning process does not know which host that is. If it knows its own host, that is kept."""
    reports = TaskReports(figures, "")
    address = begin(reports, 1)
    known = replace(address, host="127.0.0.1")
    send_report(address.found_at("localhost"), read(SPLITS), is_complete=True)
    reports.receive()
    reports.close()

    assert address.host == ""
    assert known.found_at("driver.example") is known
    assert figures.splits().keys() == set(SPLITS)


def test_attempts_count_as_reads_and_once_in_their_batch(reports: TaskReports, figures: ReadFigures) -> None:
    """A task that failed has read; so has a speculative twin. The batch holds each range once."""
    address, split = begin(reports, 1), SPLITS[0]
    send_report(address, read([split], 3), is_complete=False)
    send_report(address, read([split]), is_complete=True)
    send_report(address, read([split]), is_complete=True)
    reports.receive()

    assert figures.splits()[split].polled == 23
    assert reports.last_batch()[split].polled == 10
    assert reports.reported == 1


def test_a_late_report_is_left_out(reports: TaskReports, figures: ReadFigures) -> None:
    """It would count in the batch that runs by then."""
    first = begin(reports, 1)
    begin(reports, 1)
    send_report(first, read(SPLITS[:1]), is_complete=True)
    reports.receive()

    assert (reports.reported, reports.last_batch(), figures.splits()) == (0, {}, {})


def test_strangers_are_not_believed(reports: TaskReports, figures: ReadFigures) -> None:
    """Nor is what somebody has recorded and sends again, nor noise."""
    address = begin(reports, 1)
    relay = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    relay.bind(("127.0.0.1", 0))
    send_report(replace(address, port=relay.getsockname()[1]), read(SPLITS[:1]), is_complete=True)
    recorded = relay.recv(65_536)
    for datagram in (recorded, recorded, b"", b"x" * 40, hmac.digest(b"", b"x", "sha256") + b"x"):
        relay.sendto(datagram, (address.host, address.port))
    send_report(replace(address, secret=b"guessed"), read(SPLITS[:1]), is_complete=True)
    relay.close()
    reports.receive()

    assert figures.splits() == {SPLITS[0]: SplitFigures(10, 0, 1000, 1, 2)}


def test_nobody_listens() -> None:
    """A report that nobody takes costs nothing; without a port there is no address."""
    reports = TaskReports(ReadFigures())
    address = begin(reports, 1)
    reports.close()
    for host in (address.host, "no such host", "no.such.host.invalid"):
        send_report(replace(address, host=host), read(SPLITS), is_complete=True)

    assert reports.begin_batch(1) is None
    assert TaskReports(ReadFigures(), "203.0.113.1").begin_batch(1) is None
    assert "secret" not in repr(address)


def test_a_task_reports_consumers_lost_to_another_reader(reports: TaskReports, figures: ReadFigures) -> None:
    """Also by a task that failed, and long after its batch: it lasts."""
    address = begin(reports, 1)
    for _ in range(3):
        begin(reports, 1)
    of_task = read(SPLITS)
    of_task.mark_contested(["arn:consumer:1"])
    send_report(address, of_task, is_complete=False)
    reports.receive()

    assert figures.contested == {"arn:consumer:1"}


def test_slow_names_hold_up_no_task(
    reports: TaskReports, figures: ReadFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is asked for once, and the report of a task that comes when it is known arrives."""
    answers, asked = threading.Event(), []

    def slow(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        assert answers.wait(60)
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(task_reports, "_LOOK_UP_WAIT", 0.0)
    address = replace(begin(reports, 1), host="").found_at("slow.example")
    for _ in range(3):
        send_report(address, read(SPLITS), is_complete=True)
    answers.set()
    monkeypatch.setattr(task_reports, "_LOOK_UP_WAIT", 60.0)
    send_report(address, read(SPLITS), is_complete=True)
    reports.receive()

    assert asked == ["slow.example"]
    assert figures.splits() == read(SPLITS).splits()


def test_a_name_that_is_not_found_is_asked_for_again(reports: TaskReports, figures: ReadFigures) -> None:
    """A resolver may fail for a moment."""
    found = iter([socket.gaierror(-3, "try again"), [(socket.AF_INET, 2, 17, "", ("127.0.0.1", 0))]])

    def failing_once(*_: Any, **__: Any) -> Any:
        answer = next(found)
        if isinstance(answer, OSError):
            raise answer
        return answer

    address = replace(begin(reports, 1), host="").found_at("failing.example")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_reports, "_LOOK_UP_WAIT", 60.0)
        patch.setattr(socket, "getaddrinfo", failing_once)
        for _ in range(2):
            send_report(address, read(SPLITS), is_complete=True)
    reports.receive()

    assert figures.splits() == read(SPLITS).splits()
