"""``sluice consumers``: what is listed, what it costs, and what is removed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import ACCOUNT, Service, option_arguments, sluice
from kinesis_transport import forget_process_state

STREAM = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders"


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    yield
    forget_process_state()


@pytest.fixture
def service() -> Service:
    service = Service()
    service.create("orders", 3)
    return service


def register(service: Service, name: str, stream: str = "orders") -> str:
    request = {"StreamARN": STREAM.replace("orders", stream), "ConsumerName": name}
    arn = service.model.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
    service.clock.advance(1)
    return str(arn)


def checkpoint_of(directory: Path, consumers: dict[str, str], stream: str = "orders") -> Path:
    (directory / "offsets").mkdir(parents=True)
    offsets = {"version": 1, "streams": {stream: {}}, "consumers": consumers}
    (directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    return directory


def names(service: Service) -> list[str]:
    answer = service.model.call("ListStreamConsumers", {"StreamARN": STREAM})
    return [each["ConsumerName"] for each in answer["Consumers"]]


def run(*arguments: Any) -> Any:
    return sluice("consumers", *arguments, *option_arguments())


def test_each_has_its_price_and_its_checkpoint(service: Service, tmp_path: Path) -> None:
    """A consumer costs by open shard and hour; one that no checkpoint names is the one to look at."""
    mine, left = register(service, "mine"), register(service, "left-over")
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": mine})

    listed = run("list", "--checkpoint", checkpoint, "--json").value

    assert {each["arn"]: each["checkpoint"] for each in listed["consumers"]} == {
        mine: str(checkpoint),
        left: None,
    }
    assert [each["dollarsAnHour"] for each in listed["consumers"]] == [0.045, 0.045]
    assert listed["dollarsAnHour"] == 0.09
    assert all(each["status"] == "ACTIVE" and each["registered"] for each in listed["consumers"])
    shown = run("list", "--checkpoint", checkpoint).out
    assert left in shown
    assert "no checkpoint given" in shown


def test_the_price_of_another_region_and_of_streams_on_demand(service: Service) -> None:
    """On demand nothing is paid for a consumer, only for what it reads."""
    register(service, "mine")
    service.model.call("CreateStream", {"StreamName": "d", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}})
    service.clock.advance(1)
    register(service, "mine", "d")

    listed = run("list", "--stream", "orders", "--stream", "d", "--price", "0.02", "--json").value

    assert {each["stream"]: each["dollarsAnHour"] for each in listed["consumers"]} == {
        "orders": 0.06,
        "d": 0.0,
    }


def test_all_streams_of_a_region(service: Service) -> None:
    """Page by page."""
    for n in range(120):
        service.model.call("CreateStream", {"StreamName": f"s{n:03}", "ShardCount": 1})
        service.clock.advance(1)
    arn = register(service, "mine", "s119")

    listed = run("list", "--all-streams", "--json").value

    assert len(listed["streams"]) == 121
    assert [each["arn"] for each in listed["consumers"]] == [arn]


@pytest.mark.usefixtures("service")
def test_a_consumer_that_is_gone_is_named(tmp_path: Path) -> None:
    """The query that registered it will register another one."""
    gone = f"{STREAM}/consumer/gone:1"
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": gone})

    assert run("list", "--checkpoint", checkpoint, "--json").value["missing"] == {gone: str(checkpoint)}
    assert f"gone: {gone}" in run("list", "--checkpoint", checkpoint).out


@pytest.mark.usefixtures("service")
def test_a_list_of_nothing_is_wrong_use() -> None:
    assert run("list").code == 2
    assert run("list", "--stream", "nosuch").code == 1


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_a_price_that_is_none_is_wrong_use(price: str) -> None:
    assert "--price is a number" in sluice("consumers", "list", "--stream", "s", f"--price={price}").errors


def test_nothing_is_removed_without_execute(service: Service) -> None:
    arn = register(service, "left-over")

    assert "would be removed" in run("remove", arn).out
    assert names(service) == ["left-over"]


def test_a_left_over_consumer_is_removed(service: Service) -> None:
    """It is gone, the others stay; a second removal has nothing to do."""
    arn, _ = register(service, "left-over"), register(service, "other")

    done = run("remove", arn, "--execute", "--json")
    service.clock.advance(1)

    assert (done.code, done.value["consumers"]) == (0, [{"arn": arn, "outcome": "removed"}])
    assert names(service) == ["other"]
    assert "was gone already" in run("remove", arn, "--execute").out


def test_the_consumer_of_a_query_is_kept(service: Service, tmp_path: Path) -> None:
    """Which checkpoint names it is said; --force removes it all the same."""
    arn = register(service, "mine")
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": arn})

    done = run("remove", arn, "--checkpoint", checkpoint, "--execute")
    assert (done.code, names(service)) == (1, ["mine"])
    assert f"refused, as it belongs to {checkpoint}" in done.out

    assert run("remove", arn, "--checkpoint", checkpoint, "--execute", "--force").code == 0
    service.clock.advance(1)
    assert names(service) == []


@pytest.mark.usefixtures("service")
def test_what_is_no_arn_of_a_consumer_is_wrong_use() -> None:
    done = run("remove", STREAM, "--execute")

    assert done.code == 2
    assert "is not the ARN of a consumer" in done.errors


def test_an_option_of_the_source_is_not_taken_for_one_of_the_connection() -> None:
    """The error says which options there are here."""
    done = sluice("consumers", "list", "--all-streams", "--option", "streamName=orders")

    assert done.code == 2
    assert "sluice consumers list: connection: option 'streamName' is not known" in done.errors
