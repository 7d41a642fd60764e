"""Runs commands in process, with services that are in process, too."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

from integration.model import KinesisModel, Laws
from integration.model.clock import ManualClock
from integration.model.errors import ModelError
from integration.model.faults import FaultPlan
from integration.model.wire import JsonCodec
from kinesis_transport import OPTIONS, Answer, Transport, answer, refusal

from sluice.aws.calling.clients import client_for
from sluice.cli.app import main
from sluice.cli.options import read_connection

RECORDINGS = Path(__file__).parents[2] / "integration" / "fixtures" / "checkpoints"
QUIET = Laws(empty_pages=0, listing_delay=0, status_delay=(0, 0), consumer_delay=(0, 0))
ACCOUNT = "123456789012"
OTHER_ACCOUNT = "999999999999"
REGION = OPTIONS["region"]
OTHER_REGION = "eu-central-1"


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    errors: str

    @property
    def value(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)


def sluice(*arguments: object) -> Outcome:
    """Runs a command."""
    out, errors = io.StringIO(), io.StringIO()
    code = main([str(each) for each in arguments], out=out, errors=errors)
    return Outcome(code, out.getvalue(), errors.getvalue())


def option_arguments(**more: str) -> list[str]:
    """Connection options with which no command reaches a network."""
    return [f"--option={key}={value}" for key, value in {**OPTIONS, **more}.items()]


@dataclass
class Service:
    """AWS in process: the strict model of Kinesis, and what a test says of the other services.

    It is that of one account and region. `elsewhere` has others, with other streams.

    Attributes:
        denied: IAM actions (``kinesis:GetRecords``) that are refused.
        kms_denied: the key of the stream may not be used.
        throttled: how many calls of ``GetRecords`` are refused from now on.
        calls: service and operation of each call.
    """

    denied: set[str] = field(default_factory=set)
    kms_denied: bool = False
    throttled: int = 0
    calls: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=lambda: dict(OPTIONS))
    clock: ManualClock = field(default_factory=lambda: ManualClock(time.time_ns() // 1000))
    account: str = ACCOUNT

    def __post_init__(self) -> None:
        self.region = self.options.get("region", REGION)
        self.model = KinesisModel(
            QUIET,
            self.clock,
            faults=FaultPlan(callback=self._fault),
            region=self.region,
            account=self.account,
        )
        self._codec = JsonCodec()
        for client in _clients(self.options, "kinesis"):
            Transport(self._kinesis).install(client)

    def elsewhere(self, region: str = REGION, account: str = ACCOUNT) -> Service:
        """Another region, or another account, whose credentials are other ones."""
        options = {**self.options, "region": region}
        if account != self.account:
            options["awsAccessKeyId"] = f"AKID{account}"
        return Service(options=options, clock=self.clock, account=account)

    def create(self, stream: str, shards: int = 1, *, created: int | None = None) -> list[str]:
        """A new stream; returns the ids of its shards.

        Args:
            created: when the service says that it was created (milliseconds since the epoch).
        """
        self.model.call("CreateStream", {"StreamName": stream, "ShardCount": shards})
        if created is not None:
            self.model._core.streams[stream].created = created * 1000
        self.clock.advance(1)
        return self.shards(stream)

    def arn(self, stream: str) -> str:
        return f"arn:aws:kinesis:{self.region}:{self.account}:stream/{stream}"

    def register(self, stream: str, name: str) -> str:
        """Registers a consumer; returns its ARN."""
        request = {"StreamARN": self.arn(stream), "ConsumerName": name}
        arn = self.model.call("RegisterStreamConsumer", request)["Consumer"]["ConsumerARN"]
        self.clock.advance(1)
        return str(arn)

    def consumers(self, stream: str) -> list[str]:
        """The names of a stream's consumers."""
        answer = self.model.call("ListStreamConsumers", {"StreamARN": self.arn(stream)})
        return [each["ConsumerName"] for each in answer["Consumers"]]

    def shards(self, stream: str) -> list[str]:
        return [each["ShardId"] for each in self.model.call("ListShards", {"StreamName": stream})["Shards"]]

    def put(self, stream: str, records: int = 40) -> dict[str, str]:
        """Puts records with many keys; returns the last sequence number by shard."""
        entries = [{"Data": b"a", "PartitionKey": str(n)} for n in range(records)]
        put = self.model.call("PutRecords", {"StreamName": stream, "Records": entries})
        return {each["ShardId"]: each["SequenceNumber"] for each in put["Records"]}

    def _check_place(self, request: Mapping[str, Any]) -> None:
        """A service knows nothing of another region or account, even if that has streams of the same name."""
        for key in ("StreamARN", "ConsumerARN"):
            arn = str(request.get(key, self.arn("")))
            if not arn.startswith(self.arn("")):
                raise ModelError(
                    "ResourceNotFoundException", f"{arn} under account {self.account} not found."
                )

    def _date(self) -> dict[str, str]:
        return {"date": formatdate(self.clock.now() / 1e6, usegmt=True)}

    def _fault(self, operation: str, _request: Mapping[str, Any]) -> ModelError | None:
        if (action := f"kinesis:{operation}") in self.denied:
            return ModelError("AccessDeniedException", denial(action))
        if self.throttled and operation == "GetRecords":
            self.throttled -= 1
            return ModelError("ProvisionedThroughputExceededException", "Rate exceeded")
        if self.kms_denied and operation == "GetRecords":
            return ModelError("KMSAccessDeniedException", "the key is not yours")
        return None

    def _kinesis(self, operation: str, params: dict[str, Any]) -> Answer:
        self.calls.append(f"kinesis:{operation}")
        self.clock.advance(0.06)
        try:
            request = self._codec.decode(json.dumps(params).encode())
            self._check_place(request)
            found = self.model.call(operation, request)
        except ModelError as error:
            return refusal(error.code, error.message, error.status)
        return answer(self._codec.encode(found), headers=self._date())


def write_checkpoint(directory: Path, *offsets: object) -> None:
    """A checkpoint whose only batch is committed, with the offset of each source."""
    lines = ["v1", "{}", *map(json.dumps, offsets)]
    for log, text in (("offsets", "\n".join(lines)), ("commits", "v1\n{}")):
        (directory / log).mkdir()
        (directory / log / "0").write_text(text)


def denial(action: str) -> str:
    """The message of a service that refuses an action."""
    return (
        f"User: arn:aws:iam::{ACCOUNT}:user/me is not authorized to perform: {action} on resource: "
        f"arn:aws:x because no identity-based policy allows the {action} action"
    )


_ACTIONS = {
    **{
        f"dynamodbstreams:{operation}": f"dynamodb:{operation}"
        for operation in ("ListStreams", "DescribeStream", "GetShardIterator", "GetRecords")
    },
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
}
"""Operations whose IAM action has another name."""


AnswerOf = Mapping[str, Any] | str | Callable[[Mapping[str, Any]], Mapping[str, Any] | str]


def _clients(options: Mapping[str, str], service: str) -> list[Any]:
    """The client of a sink, and that of a source, which may ask for CBOR."""
    connection = read_connection(options)
    return [client_for(replace(connection, wire_format=form), service) for form in ("json", "auto")]


class OtherServices:
    """The services other than Kinesis, in place of the SDK's sending: the test says what they answer.

    Args:
        service: has the actions that are denied, and takes the calls.
        answers: ``<service>:<Operation>`` to the answer, the code of a refusal, or a function of
            the request that makes either.
        asked: takes the principals that the simulator is asked for.
    """

    def __init__(
        self,
        service: Service,
        answers: Mapping[str, AnswerOf],
        asked: list[str] | None = None,
    ) -> None:
        self._asked = [] if asked is None else asked
        self._service = service
        self._answers = answers
        for name in ("sts", "iam", "s3", "sqs", "dynamodb", "dynamodbstreams", "firehose"):
            for client in _clients(service.options, name):
                client.meta.events.unregister("before-call", unique_id="services")
                client.meta.events.register("before-call", self._answer, unique_id="services")

    def _answer(self, model: Any, params: Any, **_: Any) -> tuple[Any, dict[str, Any]]:
        call = f"{model.service_model.service_name}:{model.name}"
        self._service.calls.append(call)
        action = _ACTIONS.get(call, call)
        if action in self._service.denied:
            return _refused("AccessDenied", denial(action), 403)
        if call == "iam:SimulatePrincipalPolicy":
            denied = params["body"]["ActionNames.member.1"] in self._service.denied
            self._asked.append(params["body"]["PolicySourceArn"])
            decision = "implicitDeny" if denied else "allowed"
            return _fine({"EvaluationResults": [{"EvalDecision": decision}]})
        found = self._answers.get(call, {})
        if callable(found):
            found = found(params)
        return _refused(found, "no", 404) if isinstance(found, str) else _fine(found)


def _fine(parsed: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    return answer(b""), {**parsed, "ResponseMetadata": {"HTTPStatusCode": 200}}


def _refused(code: str, message: str, status: int) -> tuple[Any, dict[str, Any]]:
    about = {"HTTPStatusCode": status}
    return answer(b"", status), {"Error": {"Code": code, "Message": message}, "ResponseMetadata": about}
