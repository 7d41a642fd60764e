"""``sluice check`` of DynamoDB Streams: tables, streams, and each permission missing in turn."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_support import ACCOUNT, AnswerOf, OtherServices, Outcome, Service, sluice
from integration.model.errors import ModelError
from integration.streams_model import Laws, StreamsModel
from kinesis_transport import OPTIONS, forget_process_state

PAGE = Path(__file__).parents[2] / "docs" / "read.md"
ME = f"arn:aws:iam::{ACCOUNT}:user/me"
NEEDS = [
    "dynamodb:ListStreams",
    "dynamodb:DescribeStream",
    "dynamodb:GetShardIterator",
    "dynamodb:GetRecords",
]
PLAIN = Laws(empty_pages=0, empty_tail=0, listing_delay=0.0, portion=10**9)


@pytest.fixture(autouse=True, scope="module")
def _fresh_process() -> Iterator[None]:
    yield
    forget_process_state()


@dataclass
class World:
    """The strict model of DynamoDB Streams, and a table `orders` with a stream."""

    service: Service
    model: StreamsModel
    arn: str

    def check(self, **options: str) -> Outcome:
        self.service.calls.clear()
        given = {**OPTIONS, **(options or {"tableName": "orders"})}
        arguments = [f"--option={key}={value}" for key, value in given.items()]
        return sluice("check", *arguments, "--json")


def statuses(done: Outcome) -> dict[str, str]:
    return {each["check"]: each["status"] for each in done.value["findings"]}


@pytest.fixture
def make_world() -> Callable[..., World]:
    def make(**answers: AnswerOf) -> World:
        service, model = Service(), StreamsModel(PLAIN, region="eu-west-1")
        arn = model.enable("orders")
        model.put("orders", "a", {"id": {"S": "a"}})

        def answer(operation: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any] | str]:
            def call(request: Mapping[str, Any]) -> Mapping[str, Any] | str:
                try:
                    found = model.call(operation, json.loads(request["body"]))
                except ModelError as error:
                    return error.code
                # As the SDK reads it: the records are its own affair.
                return {**found, "Records": []} if operation == "GetRecords" else found

            return call

        OtherServices(
            service,
            {
                "sts:GetCallerIdentity": {"Arn": ME},
                **{f"dynamodbstreams:{action[9:]}": answer(action[9:]) for action in NEEDS},
                **{name.replace("__", ":"): value for name, value in answers.items()},
            },
        )
        return World(service, model, arn)

    return make


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()


@pytest.mark.parametrize("by_arn", [False, True])
def test_all_is_well(world: World, *, by_arn: bool) -> None:
    """Every action of the documented policy is checked; ``ListStreams`` is needed for a table alone."""
    done = world.check(**{"streamArn": world.arn} if by_arn else {})

    assert (done.code, done.value["missingActions"]) == (0, [])
    assert set(statuses(done).values()) == {"ok"}
    documented = set(re.findall(r'"(dynamodb:[A-Z]\w+)"', PAGE.read_text()))
    documented -= {"dynamodb:DescribeTable", "dynamodb:Scan"}  # with `initialSnapshot` alone
    assert documented == set(NEEDS)
    checked = {each["action"] for each in done.value["findings"]} - {None}
    assert checked == documented - ({"dynamodb:ListStreams"} if by_arn else set())
    described = next(each for each in done.value["findings"] if each["action"] == "dynamodb:DescribeStream")
    assert described["text"] == "ENABLED, NEW_AND_OLD_IMAGES"
    assert world.service.calls == [
        "sts:GetCallerIdentity",
        *(f"dynamodbstreams:{each[9:]}" for each in NEEDS[by_arn:]),
    ]


@pytest.mark.parametrize("denied", [set(), {"dynamodb:Scan"}, {"dynamodb:DescribeTable"}])
def test_what_a_scan_needs_is_checked_too(make_world: Callable[..., World], denied: set[str]) -> None:
    world = make_world(dynamodb__DescribeTable={"Table": {}}, dynamodb__Scan={"Items": []})
    world.service.denied = denied

    done = world.check(tableName="orders", initialSnapshot="scan")

    assert (done.code, set(done.value["missingActions"])) == (int(bool(denied)), denied)
    assert {"dynamodb:DescribeTable", "dynamodb:Scan"} < {each["action"] for each in done.value["findings"]}


@pytest.mark.parametrize("action", NEEDS)
def test_each_permission_that_is_missing_is_named(world: World, action: str) -> None:
    """It alone is, with exit code 1, and what depends on it is asked of IAM."""
    world.service.denied = {action}

    done = world.check()

    assert (done.code, done.value["missingActions"]) == (1, [action])
    failed = [check for check, status in statuses(done).items() if status == "failed"]
    assert failed == [f"{action} on orders"]
    assert {each["action"] for each in done.value["findings"]} - {None} == set(NEEDS)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"Table": {"TableStatus": "ACTIVE"}}, "the table is ACTIVE, and no stream is enabled for it"),
        ("ResourceNotFoundException", "the table does not exist in this account and region"),
        ("AccessDeniedException", "the table has no stream, or does not exist"),
        ("UnknownOperationException", "the table has no stream, or does not exist"),
    ],
)
def test_a_table_without_a_stream(make_world: Callable[..., World], answer: AnswerOf, text: str) -> None:
    """Whether it exists is asked of DynamoDB, for the sentence alone."""
    done = make_world(dynamodb__DescribeTable=answer).check(tableName="other")

    assert (done.code, done.value["missingActions"]) == (1, [])
    assert statuses(done)["stream of other"] == "failed"
    assert text in done.value["findings"][-1]["text"]


def test_a_stream_that_is_disabled_is_a_warning(world: World) -> None:
    """It can be read for a day; the newest of several counts."""
    world.model.disable("orders")
    done = world.check()
    assert done.code == 0
    assert statuses(done)["stream of orders"] == "warning"

    world.model.clock.advance(10.0)
    world.model.enable("orders")
    assert "stream of orders" not in statuses(world.check())


def test_a_stream_that_is_gone(world: World) -> None:
    """Its ARN is of a stream that was disabled more than a day ago, or of another account."""
    done = world.check(streamArn=world.arn.replace("table/orders", "table/orderz"))

    assert done.code == 1
    assert statuses(done)["dynamodb:DescribeStream on orderz"] == "failed"


def test_each_table_is_checked(world: World) -> None:
    world.model.enable("refunds")

    done = world.check(tableName="orders, refunds")

    assert done.code == 0
    assert {"dynamodb:GetRecords on orders", "dynamodb:GetRecords on refunds"} <= set(statuses(done))
