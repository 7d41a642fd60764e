"""Requests that a service refuses as a whole: for one entry, or because they are too large."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from botocore import exceptions as sdk
from hypothesis import given
from hypothesis import strategies as st

from sluice.aws.calling.connection import ConnectionConfig
from sluice.destinations.common import parted_requests
from sluice.destinations.common.batch_call import BatchCall, Refusal
from sluice.destinations.common.parted_requests import AwsDestination
from sluice.errors import ServiceError

KIB = 1024


class Service:
    """Refuses requests larger than `limit`, and those with an entry of `bad`, with `code` as a whole."""

    def __init__(
        self, *, bad: Sequence[int] = (), limit: int = 10**9, code: str = "ValidationException"
    ) -> None:
        self.bad, self.limit, self.code = set(bad), limit, code
        self.stored: list[int] = []
        self.requests: list[int] = []
        self.fail_at: dict[int, str] = {}
        self.call = BatchCall(ConnectionConfig(region="eu-west-1"), "sqs", "SendMessageBatch", f"q{id(self)}")

    def send_part(self, entries: Sequence[int]) -> list[Refusal | None]:
        self.requests.append(sum(entries))
        code = self.fail_at.get(len(self.requests))
        if code is None and (self.bad & set(entries) or sum(entries) > self.limit):
            code = self.code
        if code:
            answer = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
            raise self.call.translated(sdk.ClientError(answer, "SendMessageBatch"))  # type: ignore[arg-type]
        self.stored += entries
        return [None] * len(entries)

    @property
    def requests_of(self) -> Callable[[Sequence[int]], list[Any]]:
        """A destination of this service, which has accepted nothing yet."""
        made = Made(self.call)
        made.service = self
        return made.send_in_parts


class Made(AwsDestination[int]):
    service: Service

    def create_converter(self) -> Any:
        raise NotImplementedError

    def size_in_bytes(self, entry: int) -> int:
        return entry

    def send_part(self, entries: Sequence[int]) -> list[Refusal | None]:
        return self.service.send_part(entries)


@given(
    st.sets(st.integers(0, 499), max_size=6),
    st.sampled_from(
        ["ValidationException", "ItemCollectionSizeLimitExceededException", "MessageTooLong", "SomethingNew"]
    ),
)
def test_a_refusal_that_entries_cause_costs_no_other_entry(bad: set[int], code: str) -> None:
    """For any code. Each other entry is written once, in order, in few requests."""
    service = Service(bad=sorted(bad), code=code)
    results = service.requests_of(range(500))

    assert service.stored == [entry for entry in range(500) if entry not in bad]
    assert {n for n, result in enumerate(results) if result} == bad
    assert {result.verdict for result in results if result} <= {"reject"}
    assert len(service.requests) <= 1 + 2 * 9 * len(bad)


@pytest.mark.parametrize("code", ["AWS.SimpleQueueService.BatchRequestTooLong", "InvalidArgumentException"])
def test_a_request_that_is_too_large_as_a_whole_is_split(code: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next one is as small from the start. The log says it once, with the option."""
    service = Service(limit=700 * KIB, code=code)
    entries = [100 * KIB] * 10
    with caplog.at_level(logging.WARNING):
        assert service.requests_of(entries) == [None] * 10
        assert len(service.requests) == 3
        assert service.requests_of(entries) == [None] * 10

    assert service.stored == entries * 2
    assert service.requests[3:] == [500 * KIB] * 2
    (record,) = (each for each in caplog.records if "maxBatchSizeInBytes" in each.getMessage())
    assert "requests of up to 512000 bytes are accepted" in record.getMessage()


def test_a_single_refused_entry_lowers_no_limit() -> None:
    service = Service(bad=[7])
    service.requests_of([7, 500 * KIB, 300 * KIB])

    assert service.call.place not in parted_requests._limits


@pytest.mark.parametrize("code", ["ValidationException", "SomethingNew"])
def test_what_is_refused_of_every_entry_is_about_the_target(code: str) -> None:
    """So not every row becomes a dead letter, unless the target has accepted others, and the code says so."""
    service = Service(bad=range(5), code=code)
    requests = service.requests_of
    with pytest.raises(ServiceError, match=code):
        requests(range(5))

    assert requests([5]) == [None]
    if code == "ValidationException":
        assert all(requests(range(5)))
    else:
        with pytest.raises(ServiceError, match=code):
            requests(range(5))


@pytest.mark.parametrize(
    "code",
    ["AccessDeniedException", "ResourceNotFoundException", "InvalidClientTokenId", "ThrottlingException"],
)
def test_what_is_about_the_target_or_passes_is_asked_once(code: str) -> None:
    service = Service(bad=range(5), code=code)
    with pytest.raises(ServiceError, match=code):
        service.requests_of(range(5))

    assert len(service.requests) == 1


def test_a_part_that_fails_for_now_does_not_send_the_others_again() -> None:
    service = Service(bad=[0])
    service.fail_at = {6: "ThrottlingException"}  # after all, [0..3], [0, 1], [0] and [1]
    results = service.requests_of(range(8))

    assert [result.verdict if result else None for result in results] == [
        "reject",
        None,
        "retry",
        "retry",
    ] + [None] * 4
    assert service.stored == [1, 4, 5, 6, 7]
