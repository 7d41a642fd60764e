"""``sluice replay``: dead letters are sent again as they were, and what cannot be is said."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cli_support import OtherServices, Service, sluice
from integration.support.http_server import Sent, http_server
from kinesis_transport import OPTIONS

from sluice.destinations import read_sink
from sluice.destinations.kinesis.converter import KinesisEntry
from sluice.destinations.sqs.converter import SqsMessage
from sluice.sink.contracts import Origin
from sluice.sink.letters.dead_letters import DeadLetter, LocalDeadLetterQueue, dead_letter_of_entry
from sluice.sink.setup import AsyncSinkSetup

MAP = pa.map_(pa.string(), pa.string())
QUEUE = "http://127.0.0.1:9/1/jobs"


def write(directory: Path, *letters: DeadLetter, partition: int = 0) -> Path:
    """As a task of the sink does."""
    queue = LocalDeadLetterQueue(directory, Origin("kinesis", "q", "r", 7, partition), sync=lambda _: None)
    for letter in letters:
        queue.add(letter)
    queue.flush()
    return directory


def setup_of(options: dict[str, str]) -> AsyncSinkSetup:
    setup = read_sink(options)
    assert isinstance(setup, AsyncSinkSetup)
    return setup


def replay(directory: Path | str, *more: str, **sink: str) -> Any:
    options = [f"--sink-option={key}={value}" for key, value in {**OPTIONS, **sink}.items()]
    return sluice("replay", directory, *options, *more, "--json")


def records(service: Service) -> dict[bytes, str]:
    """Data to partition key, of all records in the stream."""
    found: dict[bytes, str] = {}
    for shard in service.shards("orders"):
        request = {"StreamName": "orders", "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = service.model.call("GetShardIterator", request)["ShardIterator"]
        page = service.model.call("GetRecords", {"ShardIterator": iterator})
        found |= {each["Data"]: each["PartitionKey"] for each in page["Records"]}
    return found


def test_records_are_sent_again_with_their_keys(tmp_path: Path) -> None:
    """Nothing without --execute; files are deleted only when asked for, and when all of them was accepted."""
    service = Service()
    service.create("orders")
    letters = write(
        tmp_path / "letters",
        dead_letter_of_entry(KinesisEntry(b"\xff one", "a"), "too large then"),
        dead_letter_of_entry(KinesisEntry(b"two", "b", "17"), "too large then"),
        DeadLetter("null then", b"three", {"partitionKey": "c", "shardId": "of the source"}),
    )
    sink = {"destination": "kinesis", "streamName": "orders"}

    shown = replay(letters, **sink)
    assert (shown.code, shown.value["sent"], shown.value["executed"]) == (0, 3, False)
    assert shown.value["reasons"] == {"too large then": 2, "null then": 1}
    assert records(service) == {}

    done = replay(letters, "--execute", **sink)
    assert (done.code, done.value["sent"], done.value["deadLetters"]) == (0, 3, 0)
    assert records(service) == {b"\xff one": "a", b"two": "b", b"three": "c"}
    assert list(letters.rglob("*.jsonl"))

    assert replay(letters, "--execute", "--delete", **sink).code == 0
    assert not list(letters.rglob("*.jsonl"))


def test_letters_are_sent_with_renewed_tokens(tmp_path: Path) -> None:
    """As the query sends them."""
    letters = write(
        tmp_path / "letters", *[dead_letter_of_entry(b"%d" % n, "too large then") for n in (1, 2)]
    )
    taken: list[bytes] = []
    tokens = iter(["first", "second"])

    def respond(sent: Sent) -> tuple[int, bytes]:
        if sent.target == "/token":
            return 200, json.dumps({"access_token": next(tokens)}).encode()
        if sent.header("authorization") != "Bearer second":
            return 401, b""
        taken.append(sent.body)
        return 200, b""

    with http_server(respond) as url:
        client = {"oauth2ClientId": "me", "oauth2ClientSecret": "mine", "oauth2TokenUrl": f"{url}/token"}
        sink = {"destination": "http", "url": f"{url}/in", "auth": "oauth2ClientCredentials", **client}
        options = [f"--sink-option={key}={value}" for key, value in sink.items()]
        done = sluice("replay", letters, *options, "--execute", "--json")

    assert (done.code, done.value["sent"]) == (0, 2)
    assert taken == [b"[1,2]"]


def test_what_cannot_be_sent_is_counted_and_kept(tmp_path: Path) -> None:
    """A row that had to be converted, and a record without data: exit code 1, and the file stays."""
    service = Service()
    service.create("orders")
    letters = write(
        tmp_path / "letters",
        DeadLetter("fine now", b"one", {"partitionKey": "a"}),
        DeadLetter("a row", b'{"total": 7}', form="row"),
        DeadLetter("no data", None, {"partitionKey": "b"}),
    )

    done = replay(letters, "--execute", "--delete", destination="kinesis", streamName="orders")

    assert (done.code, done.value["sent"], done.value["skipped"]) == (1, 1, 2)
    assert set(records(service)) == {b"one"}
    assert list(letters.rglob("*.jsonl"))


def test_what_is_refused_again_goes_elsewhere(tmp_path: Path) -> None:
    """To the sink's deadLetterPath, which may not be the one that is read; without one the command fails."""
    service = Service()
    service.create("orders")
    letters = write(tmp_path / "letters", DeadLetter("then", b"x" * 50, {"partitionKey": "a"}))
    sink = {"destination": "kinesis", "streamName": "orders", "maxRecordSizeInBytes": "20"}
    again = {"oversizedRecords": "deadLetter", "deadLetterPath": str(tmp_path / "again")}

    assert replay(letters, "--execute", **sink).code == 3
    assert replay(letters, **sink, **(again | {"deadLetterPath": str(letters)})).code == 2

    done = replay(letters, "--execute", **sink, **again)
    assert (done.code, done.value["deadLetters"]) == (1, 1)
    (file,) = (tmp_path / "again").rglob("*.jsonl")
    assert json.loads(file.read_text())["attributes"]["partitionKey"] == "a"


def test_names_of_columns_are_compared_without_regard_to_case(tmp_path: Path) -> None:
    """As the sink does: the letter of a refused row has them as the row had them."""
    service = Service()
    service.create("orders")
    letters = write(
        tmp_path / "letters",
        DeadLetter("then", b"one", {"PARTITIONKEY": "a"}),
        DeadLetter("then", b"two", {"partition_key": "no key", "partitionKey": "b"}),
    )

    assert replay(letters, "--execute", destination="kinesis", streamName="orders").code == 0
    assert records(service) == {b"one": "a", b"two": "b"}


def test_messages_of_a_queue(tmp_path: Path) -> None:
    """Their letters hold the whole entry; an entry with a refused row is not sent as it is."""
    service = Service(options={**OPTIONS})
    sent: list[Mapping[str, Any]] = []

    def accept(params: Mapping[str, Any]) -> Mapping[str, Any]:
        body = params["body"]
        entries = json.loads(body)["Entries"]
        sent.extend(entries)
        return {"Successful": [{"Id": each["Id"], "MessageId": "m"} for each in entries]}

    OtherServices(service, {"sqs:SendMessageBatch": accept})
    letters = write(
        tmp_path / "letters",
        dead_letter_of_entry(SqsMessage("hello", "g", "d", None, {"a": "b"}), "then"),
        dead_letter_of_entry(SqsMessage("world", "g", "e"), "then"),
        DeadLetter("too long a delay", b'{"body": "not yet", "delaySeconds": 9999}', form="row"),
    )

    done = replay(letters, "--execute", destination="sqs", queueUrl=f"{QUEUE}.fifo")

    assert (done.code, done.value["sent"], done.value["skipped"]) == (1, 2, 1)
    assert [each["MessageBody"] for each in sent] == ["hello", "world"]
    assert [(each["MessageGroupId"], each["MessageDeduplicationId"]) for each in sent] == [
        ("g", "d"),
        ("g", "e"),
    ]
    assert sent[0]["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "b"}}


def test_rows_are_compressed_once_more_and_no_more(tmp_path: Path) -> None:
    """Letters of a sink with `compression` hold what the rows were, so its options make the same entries."""
    service = Service(options={**OPTIONS})
    sent: list[Mapping[str, Any]] = []

    def accept(params: Mapping[str, Any]) -> Mapping[str, Any]:
        entries = json.loads(params["body"])["Entries"]
        sent.extend(entries)
        return {"Successful": [{"Id": each["Id"], "MessageId": "m"} for each in entries]}

    OtherServices(service, {"sqs:SendMessageBatch": accept})
    sink = {"destination": "sqs", "queueUrl": f"{QUEUE}.fifo", "compression": "gzip"}
    destination = setup_of({**OPTIONS, **sink}).destination
    row = pa.record_batch(
        {"body": [b"\xff one"], "messageGroupId": ["g"], "attributes": pa.array([[("a", "b")]], MAP)}
    )
    (entry,) = destination.create_converter().convert(row)
    letters = write(
        tmp_path / "letters", *(dead_letter_of_entry(each, "then") for each in destination.unpacked(entry))
    )

    done = replay(letters, "--execute", **sink)

    assert (done.code, done.value["sent"]) == (0, 1)
    assert [(each["MessageBody"], each["MessageGroupId"]) for each in sent] == [(entry.body, "g")]
    assert sent[0]["MessageAttributes"] == {"a": {"DataType": "String", "StringValue": "b"}}


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"destination": "dynamodb", "tableName": "table"}, "letters go to kinesis, firehose, http, sqs"),
        ({}, "destination is not given"),
        (
            {"destination": "kinesis", "streamName": "s", "elementConverter": "a:B"},
            "leave out elementConverter",
        ),
    ],
)
def test_sinks_that_letters_are_not_sent_to(tmp_path: Path, sink: dict[str, str], problem: str) -> None:
    done = replay(tmp_path, **sink)

    assert done.code == 2
    assert problem in done.errors


def test_a_file_of_something_else(tmp_path: Path) -> None:
    """Is named with its line; nothing of it is sent."""
    (tmp_path / "x.jsonl").write_text('{"reason": "r", "data": null, "form": "data"}\n[1]\n')

    done = replay(tmp_path, "--execute", destination="kinesis", streamName="orders")

    assert done.code == 3
    assert "x.jsonl, line 2: not a dead letter" in done.errors


@pytest.mark.parametrize(
    "change",
    [
        {"data": "b25l!"},
        {"data": "b25"},
        {"data": 5},
        {"attributes": None},
        {"attributes": ["partitionKey"]},
        {"attributes": {"partitionKey": 5}},
    ],
    ids=str,
)
def test_a_letter_that_was_changed_is_not_sent_as_another(tmp_path: Path, change: dict[str, Any]) -> None:
    """Nothing of its file is sent, and the file stays."""
    service = Service()
    service.create("orders")
    letters = write(tmp_path / "letters", DeadLetter("then", b"one", {"partitionKey": "a"}))
    (file,) = letters.rglob("*.jsonl")
    file.write_text(file.read_text() + json.dumps({**json.loads(file.read_text()), **change}) + "\n")

    done = replay(letters, "--execute", "--delete", destination="kinesis", streamName="orders")

    assert done.code == 3
    assert "Traceback" not in done.errors
    assert "line 2: not a dead letter" in done.errors or "partitionKey is not string" in done.errors
    assert records(service) == {}
    assert file.exists()


@pytest.mark.parametrize(
    ("letters", "own", "is_allowed"),
    [
        ("letters", "letters", False),
        ("letters/../letters/", "letters", False),
        ("letters/q", "letters", False),
        ("letters", "letters/again", False),
        ("linked", "letters", False),
        ("letters", "letters-again", True),
        ("letters", "letter", True),
    ],
)
def test_letters_that_are_refused_again_go_to_another_place(
    tmp_path: Path, letters: str, own: str, *, is_allowed: bool
) -> None:
    """Their names do not matter: a name that begins like another is no directory of it."""
    write(tmp_path / "letters", DeadLetter("then", b"one"))
    (tmp_path / "linked").symlink_to(tmp_path / "letters")
    sink = {"destination": "kinesis", "streamName": "orders", "deadLetterPath": str(tmp_path / own)}

    done = replay(f"{tmp_path}/{letters}", **sink)

    assert done.code == (0 if is_allowed else 2), done.errors
    assert is_allowed or "give it another one" in done.errors


@pytest.mark.skipif(os.name != "posix", reason="URLs of POSIX paths")
@pytest.mark.parametrize("url", ["file:{}", "file://{}"])
def test_letters_by_a_url(tmp_path: Path, url: str) -> None:
    """It is the same place as the path."""
    letters = write(tmp_path / "letters", DeadLetter("then", b"one"))
    sink = {"destination": "kinesis", "streamName": "orders"}

    assert replay(url.format(letters), **sink).value["sent"] == 1
    assert replay(url.format(letters), **sink, deadLetterPath=str(letters / "again")).code == 2


def test_a_place_without_letters(tmp_path: Path) -> None:
    """A mistyped name is refused, and not read as a place without letters."""
    done = replay(tmp_path / "nosuch", destination="kinesis", streamName="orders")

    assert done.code == 3
    assert f"{tmp_path / 'nosuch'} does not exist" in done.errors
