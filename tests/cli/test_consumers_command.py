"""``sluice consumers``: what is listed, and what is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_support import ACCOUNT, OTHER_ACCOUNT, OTHER_REGION, REGION, Service, option_arguments, sluice

STREAM = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders"


@pytest.fixture
def service() -> Service:
    service = Service()
    service.create("orders", 3)
    return service


def checkpoint_of(directory: Path, consumers: dict[str, str], stream: str = "orders") -> Path:
    (directory / "offsets").mkdir(parents=True)
    offsets = {"version": 1, "streams": {stream: {}}, "consumers": consumers}
    (directory / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offsets)}")
    return directory


def run(*arguments: Any) -> Any:
    return sluice("consumers", *arguments, *option_arguments())


def test_each_has_its_shards_and_its_checkpoint(service: Service, tmp_path: Path) -> None:
    """A consumer costs by open shard and hour; one that no checkpoint names deserves a check."""
    mine, left = service.register("orders", "mine"), service.register("orders", "left-over")
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": mine})

    listed = run("list", "--checkpoint", checkpoint, "--json").value

    assert {each["arn"]: each["checkpoint"] for each in listed["consumers"]} == {
        mine: str(checkpoint),
        left: None,
    }
    assert [each["openShards"] for each in listed["consumers"]] == [3, 3]
    assert all(each["status"] == "ACTIVE" and each["registered"] for each in listed["consumers"])
    shown = run("list", "--checkpoint", checkpoint).out
    assert left in shown
    (row,) = (line for line in shown.splitlines() if line.startswith("orders/left-over  ACTIVE"))
    assert row.endswith(f"perhaps {checkpoint}")
    assert {each["arn"]: each["perhapsUsedBy"] for each in listed["consumers"]} == {
        mine: [str(checkpoint)],
        left: [str(checkpoint)],
    }


def test_all_streams_of_a_region(service: Service) -> None:
    """Page by page."""
    for n in range(120):
        service.model.call("CreateStream", {"StreamName": f"s{n:03}", "ShardCount": 1})
        service.clock.advance(1)
    arn = service.register("s119", "mine")

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
    assert run("list", "--stream", "nosuch").code == 3
    assert run("list", "--stream", "a b").code == 2
    assert "is not a stream" in run("list", "--stream", "arn:aws:sqs:eu-west-1:1:orders").errors
    assert "is not the ARN of a consumer" in run("remove", STREAM, "--execute").errors


def test_a_left_over_consumer_is_removed(service: Service) -> None:
    """Not without --execute. It is gone, the others stay; a second removal has nothing to do."""
    arn, _ = service.register("orders", "left-over"), service.register("orders", "other")
    assert "would be removed" in run("remove", arn).out
    assert service.consumers("orders") == ["left-over", "other"]

    done = run("remove", arn, "--execute", "--json")
    service.clock.advance(1)

    assert (done.code, done.value["consumers"]) == (0, [{"arn": arn, "outcome": "removed"}])
    assert service.consumers("orders") == ["other"]
    assert "was deleted already" in run("remove", arn, "--execute").out


def test_the_consumer_of_a_query_is_kept(service: Service, tmp_path: Path) -> None:
    """Which checkpoint names it is said; --force removes it all the same."""
    arn = service.register("orders", "mine")
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": arn})

    done = run("remove", arn, "--checkpoint", checkpoint, "--execute")
    assert (done.code, service.consumers("orders")) == (1, ["mine"])
    assert f"refused, as it belongs to {checkpoint}" in done.out

    assert run("remove", arn, "--checkpoint", checkpoint, "--execute", "--force").code == 0
    service.clock.advance(1)
    assert service.consumers("orders") == []


@pytest.mark.parametrize(
    "how", ["found by name", "given by ARN", "registered an earlier one", "no batch yet"]
)
def test_a_consumer_that_a_query_may_use_is_kept(service: Service, tmp_path: Path, how: str) -> None:
    """A checkpoint names only the consumer that its query registered."""
    arn = service.register("orders", "q")
    earlier = {"orders": f"{STREAM}/consumer/earlier:1"} if how == "registered an earlier one" else {}
    checkpoint = checkpoint_of(tmp_path / "c", earlier)
    if how == "no batch yet":
        (checkpoint / "offsets" / "0").unlink()
        (checkpoint / "metadata").write_text('{"id":"q"}')

    for arguments in ([], ["--execute"]):
        done = run("remove", arn, "--checkpoint", checkpoint, *arguments, "--json")
        assert (done.code, service.consumers("orders")) == (1, ["q"])
        outcome = done.value["consumers"][0]["outcome"]
        assert outcome.startswith(f"refused, as it is perhaps in use: {checkpoint} may read orders")

    assert run("remove", arn, "--checkpoint", checkpoint, "--execute", "--force").code == 0
    service.clock.advance(1)
    assert service.consumers("orders") == []


def test_a_consumer_of_a_namesake_is_not_in_use(service: Service, tmp_path: Path) -> None:
    """If the checkpoint tells which stream of that name its query reads."""
    elsewhere = service.elsewhere(OTHER_REGION)
    elsewhere.create("orders")
    used, left = service.register("orders", "q"), elsewhere.register("orders", "q")
    checkpoint = checkpoint_of(tmp_path / "c", {"orders": used})
    anywhere = [each for each in option_arguments() if "region" not in each]

    done = sluice("consumers", "remove", left, "--checkpoint", checkpoint, "--execute", *anywhere)
    service.clock.advance(1)

    assert (done.code, elsewhere.consumers("orders"), service.consumers("orders")) == (0, [], ["q"])


@pytest.mark.parametrize("is_namesake", [True, False])
def test_the_region_of_an_arn_is_used(
    service: Service, monkeypatch: pytest.MonkeyPatch, *, is_namesake: bool
) -> None:
    """Even if the SDK's own chain has another region. If an option names another one, nothing is done."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    elsewhere = service.elsewhere(OTHER_REGION)
    elsewhere.create("orders")
    there = elsewhere.register("orders", "q")
    here = service.register("orders", "q") if is_namesake else None
    anywhere = [each for each in option_arguments() if "region" not in each]

    listed = sluice("consumers", "list", "--stream", elsewhere.arn("orders"), "--json", *anywhere)
    refusals = [
        run("list", "--stream", elsewhere.arn("orders")),
        run("remove", there, "--execute"),
        run("remove", there, "--execute", "--force"),
        *([run("remove", here, there, "--execute")] if here else []),
        sluice(
            *("consumers", "remove", there, "--execute", *anywhere),
            f"--option=endpointUrl=https://kinesis.{REGION}.amazonaws.com",
        ),
    ]
    assert [each["arn"] for each in listed.value["consumers"]] == [there]
    assert {each.code for each in refusals} == {2}
    assert all(f"is in {OTHER_REGION}: leave the option out" in each.errors for each in refusals)
    assert elsewhere.consumers("orders") == ["q"]

    done = sluice("consumers", "remove", there, "--execute", *anywhere)
    elsewhere.clock.advance(1)
    assert (done.code, elsewhere.consumers("orders")) == (0, [])
    assert service.consumers("orders") == (["q"] if is_namesake else [])
    assert "was deleted already" in sluice("consumers", "remove", there, "--execute", *anywhere).out


@pytest.mark.parametrize("namesakes", [["orders"], ["clicks"]])
def test_a_consumer_that_another_account_has_is_not_gone(namesakes: list[str]) -> None:
    """To the caller's account it is missing, whether or not that has a stream of the name."""
    service = Service()
    for stream in namesakes:
        service.create(stream)
    elsewhere = service.elsewhere(account=OTHER_ACCOUNT)
    elsewhere.create("orders")
    arn = elsewhere.register("orders", "q")

    done = run("remove", arn, "--execute", "--json")

    assert (done.code, elsewhere.consumers("orders")) == (1, ["q"])
    assert "not found, nor is its stream" in done.value["consumers"][0]["outcome"]


def test_an_endpoint_that_goes_by_the_name_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a stream of that name is no answer."""
    monkeypatch.setattr(Service, "_check_place", lambda *_: None)
    arn = f"arn:aws:kinesis:eu-west-1:{OTHER_ACCOUNT}:stream/orders/consumer/q:1"
    service.register("orders", "q")

    removed, listed = run("remove", arn, "--execute"), run("list", "--stream", arn.partition("/consumer")[0])

    assert (removed.code, listed.code) == (1, 3)
    assert f"the endpoint answers for {STREAM}" in removed.out
    assert f"the endpoint answers for {STREAM}" in listed.errors


def test_what_was_done_is_said_though_another_removal_fails(service: Service) -> None:
    """The exit code is that of a problem, and each consumer has its line."""
    first, second = service.register("orders", "a"), service.register("orders", "b")
    other = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/none/consumer/q:1"
    service.denied.add("kinesis:DescribeStreamSummary")

    done = run("remove", first, other, second, "--execute", "--json")
    service.clock.advance(1)

    assert (done.code, service.consumers("orders")) == (1, [])
    first_outcome, failed, second_outcome = (each["outcome"] for each in done.value["consumers"])
    assert (first_outcome, second_outcome) == ("removed", "removed")
    assert failed.startswith("not removed (DescribeStreamSummary of none")


def test_an_option_of_the_source_is_not_mistaken_for_one_of_the_connection() -> None:
    """The error says which options there are here."""
    done = sluice("consumers", "list", "--all-streams", "--option", "streamName=orders")

    assert done.code == 2
    assert "sluice consumers list: connection: option 'streamName' is not known" in done.errors
