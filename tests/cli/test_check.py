"""``sluice check``: each permission missing in turn is named, and nothing is written."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_support import ACCOUNT, AnswerOf, OtherServices, Service, sluice
from integration.support.http_server import Sent, http_server
from kinesis_transport import OPTIONS, forget_process_state

from sluice.aws.calling.connection import ConnectionConfig
from sluice.aws.errors import IN_ROLE
from sluice.cli.checks.findings import Findings
from sluice.cli.checks.identity import Identity, find_identity
from sluice.errors import ServiceError

ROOT = Path(__file__).parents[2]
ME = f"arn:aws:iam::{ACCOUNT}:user/me"
STREAM = f"arn:aws:kinesis:eu-west-1:{ACCOUNT}:stream/orders"

POLLING = [
    "kinesis:DescribeStreamSummary",
    "kinesis:ListShards",
    "kinesis:GetShardIterator",
    "kinesis:GetRecords",
]
FAN_OUT = [
    "kinesis:DescribeStreamConsumer",
    "kinesis:RegisterStreamConsumer",
    "kinesis:DeregisterStreamConsumer",
    "kinesis:SubscribeToShard",
]
S3 = [
    "s3:PutObject",
    "s3:GetObject",
    "s3:DeleteObject",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:AbortMultipartUpload",
]
ANSWERS: Mapping[str, AnswerOf] = {
    "sts:GetCallerIdentity": {"Arn": ME},
    "s3:AbortMultipartUpload": "NoSuchUpload",
    "s3:GetObject": "NoSuchKey",
    "firehose:DescribeDeliveryStream": {
        "DeliveryStreamDescription": {
            "DeliveryStreamStatus": "ACTIVE",
            "DeliveryStreamARN": "arn:aws:firehose:x",
        }
    },
    "dynamodb:DescribeTable": {
        "Table": {"TableStatus": "ACTIVE", "TableArn": "arn:t", "KeySchema": [{"AttributeName": "id"}]}
    },
    "sqs:GetQueueAttributes": {"Attributes": {"QueueArn": "arn:aws:sqs:eu-west-1:1:jobs"}},
}
SINKS: Mapping[str, Mapping[str, str]] = {
    "kinesis": {"destination": "kinesis", "streamName": "orders"},
    "aggregating": {"destination": "kinesis", "streamArn": STREAM, "aggregate": "true"},
    "firehose": {"destination": "firehose", "deliveryStream": "d"},
    "dynamodb": {"destination": "dynamodb", "tableName": "table"},
    "updates": {
        "destination": "dynamodb",
        "tableName": "table",
        "keyColumns": "id",
        "operationColumn": "op",
        "writeMode": "update",
    },
    "conditions": {
        "destination": "dynamodb",
        "tableName": "table",
        "keyColumns": "id",
        "condition": "v < :v",
    },
    "sqs": {"destination": "sqs", "queueUrl": "http://127.0.0.1:9/1/jobs"},
    "s3": {"destination": "s3", "path": "s3://lake/events"},
    "files": {"destination": "Files", "path": "s3://lake/events"},
    "dead letters": {
        "destination": "sqs",
        "queueUrl": "http://127.0.0.1:9/1/jobs",
        "deadLetterPath": "s3://lake/dead",
    },
}
NEEDS = {
    "kinesis": ["kinesis:PutRecords"],
    "aggregating": ["kinesis:PutRecords", "kinesis:ListShards"],
    "firehose": ["firehose:PutRecordBatch"],
    "dynamodb": ["dynamodb:BatchWriteItem"],
    "updates": ["dynamodb:UpdateItem", "dynamodb:DeleteItem"],
    "conditions": ["dynamodb:PutItem"],
    "sqs": ["sqs:SendMessage"],
    "s3": S3,
    "files": S3,
    "dead letters": ["sqs:SendMessage", "s3:PutObject"],
}
WRITES = re.compile(r":(Put|Update|Delete|Send|Batch|Create|Register|Deregister|Subscribe|Upload|Complete)")


@pytest.fixture(autouse=True, scope="module")
def _fresh_process() -> Iterator[None]:
    """Seven clients take half a second to make: the tests share them."""
    yield
    forget_process_state()


@pytest.fixture
def service() -> Service:
    service = Service()
    service.create("orders", 2)
    service.put("orders")
    OtherServices(service, ANSWERS)
    return service


def check(*, source: Mapping[str, str] | None = None, sink: Mapping[str, str] | None = None) -> Any:
    arguments = []
    for name, options in (("option", source), ("sink-option", sink)):
        if options is not None:
            arguments += [f"--{name}={key}={value}" for key, value in {**OPTIONS, **options}.items()]
    return sluice("check", *arguments, "--json")


def statuses(done: Any) -> dict[str, str]:
    return {each["check"]: each["status"] for each in done.value["findings"]}


# --- the source ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"consumerName": "me"}])
def test_all_is_well(service: Service, options: dict[str, str]) -> None:
    """Every action that the policies of docs/options.md list is checked; nothing is written or registered."""
    service.calls.clear()

    done = check(source={"streamName": "orders", **options})

    assert (done.code, done.value["missingActions"]) == (0, [])
    assert set(statuses(done).values()) == {"ok"}
    assert not [call for call in service.calls if WRITES.search(call)]
    policy = set(re.findall(r'"(kinesis:[A-Z]\w+)"', (ROOT / "docs" / "options.md").read_text())) - {
        "kinesis:PutRecords"
    }
    checked = {each["action"] for each in done.value["findings"]} - {None}
    assert checked == (policy if options else set(POLLING))


@pytest.mark.parametrize("action", POLLING + FAN_OUT)
@pytest.mark.parametrize("address", [{"streamName": "orders"}, {"streamArn": STREAM}])
def test_each_permission_to_read_that_is_missing_is_named(
    service: Service, action: str, address: dict[str, str]
) -> None:
    """It alone is, with exit code 1; what depends on it is unknown, and nothing else fails."""
    service.denied = {action}

    done = check(source={**address, "consumerName": "me"})

    assert (done.code, done.value["missingActions"]) == (1, [action])
    failed = [check for check, status in statuses(done).items() if status == "failed"]
    assert len(failed) == 1
    assert all(check.startswith(f"{action} on ") for check in failed)


def test_all_permissions_missing_are_named_at_once(service: Service) -> None:
    service.denied = set(POLLING)

    done = check(source={"streamName": "orders"})

    assert done.value["missingActions"] == sorted(set(POLLING) - {"kinesis:GetRecords"})
    assert statuses(done)["kinesis:GetRecords on orders"] == "unknown"


def test_a_permission_that_only_errors_need_is_a_warning(service: Service) -> None:
    service.denied = {"kinesis:ListStreamConsumers"}

    done = check(source={"streamName": "orders", "consumerName": "me"})

    assert done.code == 0
    assert statuses(done)["kinesis:ListStreamConsumers on orders"] == "warning"
    assert done.value["missingActions"] == ["kinesis:ListStreamConsumers"]


def test_without_the_simulator_what_is_not_tried_is_unknown(service: Service) -> None:
    """It says why, and which permission would tell; that is no failure."""
    service.denied = {"iam:SimulatePrincipalPolicy", "kinesis:SubscribeToShard"}

    done = check(source={"streamName": "orders", "consumerName": "me"})

    assert done.code == 0
    unknown = [each for each in done.value["findings"] if each["status"] == "unknown"]
    assert {each["action"] for each in unknown} == set(FAN_OUT) - {"kinesis:DescribeStreamConsumer"}
    assert all(
        "iam:SimulatePrincipalPolicy, which would tell, is missing" in each["text"] for each in unknown
    )
    assert sum(call == "iam:SimulatePrincipalPolicy" for call in service.calls) == 1


def test_a_key_that_may_not_be_used_is_named(service: Service) -> None:
    """The service says so when a record is read."""
    service.kms_denied = True

    done = check(source={"streamName": "orders"})

    assert done.value["missingActions"] == ["kms:Decrypt"]


@pytest.mark.usefixtures("service")
def test_a_stream_that_does_not_exist() -> None:
    done = check(source={"streamName": "ordres"})

    assert done.code == 1
    assert done.value["missingActions"] == []
    failed = [each["text"] for each in done.value["findings"] if each["status"] == "failed"]
    assert len(failed) == 2
    assert all("does not exist in this account and region" in text for text in failed)
    allowed = [each["check"] for each in done.value["findings"] if each["status"] == "ok"]
    assert allowed == ["options", "credentials"]  # unknown whether a missing stream could be read


def test_a_consumer_of_the_users_own(service: Service) -> None:
    """It is described by its ARN, and nothing would be registered; a deleted one is a failure."""
    request = {"StreamARN": STREAM, "ConsumerName": "mine"}
    arn = service.model.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
    service.clock.advance(1)

    done = check(source={"streamName": "orders", "consumerArn": arn})
    assert done.code == 0
    assert {each["action"] for each in done.value["findings"]} & set(FAN_OUT) == {
        "kinesis:DescribeStreamConsumer",
        "kinesis:SubscribeToShard",
    }

    gone = check(source={"streamName": "orders", "consumerArn": f"{STREAM}/consumer/gone:1"})
    assert gone.code == 1
    assert statuses(gone)["kinesis:DescribeStreamConsumer on orders/consumer/gone"] == "failed"


def test_options_that_are_wrong_are_a_finding(service: Service) -> None:
    """No service is called then."""
    service.calls.clear()
    done = check(source={"streamNam": "orders"})

    assert done.code == 1
    assert done.value["findings"][0]["check"] == "options"
    assert "did you mean 'streamName'" in done.value["findings"][0]["text"]
    assert service.calls == []


@pytest.mark.usefixtures("service")
def test_nothing_to_check_is_wrong_use() -> None:
    assert sluice("check").code == 2


# --- the caller ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["InvalidClientTokenId", "ExpiredToken"])
def test_credentials_that_are_refused(code: str) -> None:
    """Nothing else is tried."""
    service = Service()
    OtherServices(service, {"sts:GetCallerIdentity": code})
    service.calls.clear()

    done = check(source={"streamName": "orders"})

    assert done.code == 1
    assert statuses(done) == {"options": "ok", "credentials": "failed"}
    assert set(service.calls) == {"sts:GetCallerIdentity"}


def test_a_service_without_sts() -> None:
    """As emulators are: the caller is not known, and the rest is tried."""
    service = Service()
    service.create("orders")
    OtherServices(service, {"sts:GetCallerIdentity": "NotImplemented"})

    done = check(source={"streamName": "orders", "consumerName": "me"})

    assert done.code == 0
    assert statuses(done)["credentials"] == "unknown"
    assert statuses(done)["kinesis:GetRecords on orders"] == "ok"


def test_a_role_is_asked_for_by_its_own_arn() -> None:
    """The simulator takes no ARN of a session."""
    service = Service()
    service.create("orders")
    asked: list[str] = []
    session = f"arn:aws:sts::{ACCOUNT}:assumed-role/spark/session-7"
    OtherServices(service, {"sts:GetCallerIdentity": {"Arn": session}}, asked)

    check(source={"streamName": "orders", "consumerName": "me"})

    assert set(asked) == {f"arn:aws:iam::{ACCOUNT}:role/spark"}


# --- the sink ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SINKS)
def test_a_destination_is_checked_without_a_row(service: Service, name: str) -> None:
    service.calls.clear()

    done = check(sink=SINKS[name])

    assert done.code == 0, done.out
    assert set(statuses(done).values()) == {"ok"}
    tried = [
        call for call in service.calls if call != "s3:AbortMultipartUpload"
    ]  # of one that does not exist
    assert not [call for call in tried if WRITES.search(call)]


@pytest.mark.parametrize(("name", "action"), [(name, action) for name in NEEDS for action in NEEDS[name]])
def test_each_permission_to_write_that_is_missing_is_named(service: Service, name: str, action: str) -> None:
    service.denied = {action}

    done = check(sink=SINKS[name])

    assert (done.code, done.value["missingActions"]) == (1, [action])


def test_the_actions_are_those_of_the_documented_policies() -> None:
    """A destination's page lists what it needs, and nothing else is asked for."""
    page = (ROOT / "docs" / "destinations.md").read_text()
    documented = set(re.findall(r'"((?:firehose|dynamodb|sqs|s3):[A-Z]\w+)"', page))
    needed = {action for actions in NEEDS.values() for action in actions}
    assert documented == {each for each in needed if not each.startswith("kinesis:")}


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("kinesis", "kinesis:DescribeStreamSummary"),
        ("firehose", "firehose:DescribeDeliveryStream"),
        ("dynamodb", "dynamodb:DescribeTable"),
        ("sqs", "sqs:GetQueueAttributes"),
    ],
)
def test_what_a_sink_does_not_need_is_no_failure(service: Service, name: str, action: str) -> None:
    """Whether the destination exists is not known then."""
    service.denied = {action}

    assert check(sink=SINKS[name]).code == 0


def test_an_endpoint_of_http_is_connected_to_and_sent_nothing() -> None:
    """Credentials of AWS are not asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/in"
        done = sluice("check", "--sink-option=destination=http", f"--sink-option=url={url}", "--json")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b""
    assert done.code == 0
    gone = sluice("check", "--sink-option=destination=http", f"--sink-option=url={url}", "--json")
    assert gone.code == 1


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"auth": "sigv4", "sigv4Service": "es", "region": "eu-west-1"}, "no credentials"),
        (
            {"auth": "sigv4", "sigv4Service": "es", "region": "a-b-1", "awsAccessKeyId": "A"}
            | {"awsSecretAccessKey": "hunter2"},
            "ok",
        ),
        ({"bearerTokenFile": "/nonexistent"}, "option 'bearerTokenFile' is '/nonexistent': No such file"),
        ({"secret": "hunter2"}, "ok"),
        ({"secret": "hunter2-wrong"}, "invalid_client"),
    ],
)
def test_credentials_for_http_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], found: str
) -> None:
    """Nothing is sent with them."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def token(sent: Sent) -> tuple[int, bytes]:
        assert sent.target == "/token"
        if b"client_secret=hunter2&" not in sent.body + b"&":
            return 401, b'{"error": "invalid_client"}'
        return 200, b'{"access_token": "hunter2-token", "expires_in": 60}'

    with http_server(token) as url:
        if "secret" in options:
            secret = options["secret"]
            client = {"oauth2ClientId": "me", "oauth2ClientSecret": secret, "oauth2TokenUrl": f"{url}/token"}
            options = {"auth": "oauth2ClientCredentials", "oauth2ClientAuthentication": "post", **client}
        sink = {"destination": "http", "url": f"{url}/in", **options}
        done = sluice("check", *[f"--sink-option={key}={value}" for key, value in sink.items()], "--json")
    finding = done.value["findings"][-1]

    assert finding["check"] == "credentials of requests"
    assert found in (finding["status"], finding["text"]) or found in finding["text"]
    assert done.code == (0 if found == "ok" else 1)
    assert "hunter2" not in done.out


# --- options from files --------------------------------------------------------------------------------


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("form", ["json", "lines"])
def test_options_from_a_file(tmp_path: Path, form: str) -> None:
    """A JSON object or lines; what the command line says comes first. No secret is printed."""
    file = tmp_path / "options"
    values = {**OPTIONS, "streamName": "other"}
    if form == "json":
        file.write_text("{" + ", ".join(f'"{key}": "{value}"' for key, value in values.items()) + "}")
    else:
        file.write_text("# of orders\n\n" + "\n".join(f"{key} = {value}" for key, value in values.items()))

    done = sluice("check", "--options", file, "--option", "STREAMNAME=orders")

    assert done.code == 0
    assert "kinesis:GetRecords on orders" in done.out
    assert OPTIONS["awsSecretAccessKey"] not in done.out


def test_files_and_options_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("{")
    (tmp_path / "lines").write_text("region")
    for arguments in (
        ["--options", tmp_path / "none"],
        ["--options", tmp_path / "broken"],
        ["--options", tmp_path / "lines"],
        ["--option", "region"],
    ):
        assert sluice("check", *arguments).code == 2


@pytest.mark.parametrize(
    ("caller", "partition"),
    [
        ("arn:aws:iam::123456789012:user/me", "aws"),
        ("arn:aws-cn:sts::123456789012:assumed-role/reader/me", "aws-cn"),
        ("arn:aws-us-gov:iam::123456789012:user/me", "aws-us-gov"),
        (None, "aws"),
    ],
)
def test_resources_are_asked_for_in_the_caller_s_partition(caller: str | None, partition: str) -> None:
    assert Identity(None, caller).partition == partition  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        (f"GetCallerIdentity failed: AccessDenied: {IN_ROLE}not authorized to perform: sts:AssumeRole", True),
        ("GetCallerIdentity failed: Throttled: of AssumeRole-tests", False),
    ],
)
def test_a_role_is_refused_where_the_sdk_says_so(
    monkeypatch: pytest.MonkeyPatch, message: str, missing: bool
) -> None:
    """And not where a name of the user's has the word in it."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ServiceError(message, code="Throttled")

    findings = Findings(ConnectionConfig(region="eu-west-1"))
    monkeypatch.setattr(findings, "call", refuse)
    find_identity(findings)

    assert [each.action for each in findings.found if each.is_missing] == ["sts:AssumeRole"] * missing
