"""The policies of docs/options.md allow each call that a source makes, and no other: by a model of IAM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from integration.model.errors import ModelError
from integration.model.laws import Laws
from integration.model.server import ModelServer
from integration.model.service import KinesisModel

from sluice.aws.names.arns import ConsumerArn
from sluice.errors import ServiceError
from sluice.kinesis.consumers.calls import list_consumers
from sluice.kinesis.consumers.registrar import ConsumerRegistrar
from sluice.kinesis.log.client import KinesisLog, kinesis_calls
from sluice.kinesis.options.config import SourceConfig, source_config_from_options
from sluice.kinesis.subscriptions.subscriber import open_subscriber
from sluice.source.logs.cursor import Cursor
from sluice.source.logs.data_loss import DataLossPolicy
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.offsets import HORIZON

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "options.md").read_text()
NAMES = {"region": "us-east-1", "account": "0" * 12, "stream": "orders", "consumer": "spark"}
STREAM = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"

Rule = tuple[str, str]
"""An action, and a pattern of ARNs that it is allowed on."""


def policy(title: str) -> set[Rule]:
    """What a policy of the page allows."""
    (text,) = re.findall(rf"### Policy for the source, {title}\n.*?```json\n(.*?)```", PAGE, re.DOTALL)
    for name, value in NAMES.items():
        text = text.replace(f"<{name}>", value)
    found: set[Rule] = set()
    for each in json.loads(text)["Statement"]:
        assert set(each) == {"Effect", "Action", "Resource"}
        parts = each["Action"], each["Resource"]
        actions, resources = ([part] if isinstance(part, str) else part for part in parts)
        found |= {(action, resource) for action in actions for resource in resources}
    return found


def arn_of(operation: str, request: Mapping[str, Any]) -> str:
    """What IAM decides on: a consumer that is named has no creation time in its ARN."""
    if arn := request.get("ConsumerARN"):
        return str(arn)
    name = request.get("ConsumerName")
    return f"{STREAM}/consumer/{name}" if name and operation == "DescribeStreamConsumer" else STREAM


class Guarded(KinesisModel):
    """Kinesis with a policy. Notes which rules were needed."""

    def __init__(self, rules: set[Rule]) -> None:
        super().__init__(Laws.kind())
        self.rules = rules
        self.used: set[Rule] = set()

    def _enter(self, operation: str, request: Mapping[str, Any], access_key: str, function: Any) -> Any:
        action, arn = f"kinesis:{operation}", arn_of(operation, request)
        found = {rule for rule in self.rules if rule[0] == action and fnmatchcase(arn, rule[1])}
        if not found:
            raise ModelError(
                "AccessDeniedException", f"is not authorized to perform: {action} on resource: {arn}"
            )
        self.used |= found
        return super()._enter(operation, request, access_key, function)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Iterator[tuple[Guarded, SourceConfig]]:
    rules, options = request.param
    model = Guarded(rules)
    model.create("orders")
    server = ModelServer(model)
    try:
        options = {"streamName": "orders", "region": "us-east-1", "endpointUrl": server.endpoint, **options}
        options |= {"awsAccessKeyId": "a", "awsSecretAccessKey": "b"}
        yield model, source_config_from_options(options)
    finally:
        server.close()


def poll(config: SourceConfig) -> None:
    """What planning and tasks call."""
    log = KinesisLog.of(config)
    log.describe("orders")
    (split,) = log.list_splits("orders")
    Cursor(log, DataLossPolicy(log, False, log.server_time), split.id, HORIZON).next_page(1)


def use_consumer(config: SourceConfig) -> None:
    """What a query does with its consumer from its first start to its end."""
    registrar = ConsumerRegistrar(config)
    arn = registrar.ensure("orders")
    assert config.fan_out is not None
    given = replace(config.fan_out, registration="none", arns={"orders": arn})
    assert ConsumerRegistrar(replace(config, fan_out=given)).ensure("orders") == arn
    assert [
        each.arn for each in list_consumers(kinesis_calls(config), ConsumerArn.parse(arn).stream_arn)
    ] == [arn]
    (split,) = KinesisLog.of(config).list_splits("orders")
    subscriber = open_subscriber(config, lambda: arn, split.id, IteratorStart("TRIM_HORIZON"))
    subscriber.next_event()
    subscriber.close()
    registrar.deregister(arn)


POLLING, FAN_OUT = policy("polling"), policy("fan-out")
BY_NAME: Mapping[str, str] = {"consumerName": "spark"}


@pytest.mark.parametrize("model", [(POLLING, {})], indirect=True)
def test_the_policy_for_polling_is_what_polling_needs(model: tuple[Guarded, SourceConfig]) -> None:
    """Sufficient and minimal, action by action and ARN by ARN."""
    service, config = model
    poll(config)
    assert service.used == POLLING


@pytest.mark.parametrize("model", [(POLLING | FAN_OUT, BY_NAME)], indirect=True)
def test_the_policy_for_fan_out_is_what_fan_out_needs(model: tuple[Guarded, SourceConfig]) -> None:
    service, config = model
    poll(config)
    use_consumer(config)
    assert service.used == POLLING | FAN_OUT


NEEDED = sorted(
    rule for rule in FAN_OUT if not re.search("List|Subscribe|Deregister", rule[0]) and "*" not in rule[1]
)


@pytest.mark.parametrize(
    ("model", "missing"),
    [((POLLING | FAN_OUT - {rule}, BY_NAME), rule) for rule in NEEDED],
    ids=[" on ".join(rule).replace(STREAM, "") for rule in NEEDED],
    indirect=["model"],
)
def test_without_one_rule_nothing_is_registered(model: tuple[Guarded, SourceConfig], missing: Rule) -> None:
    """A consumer that nobody may use is paid for. The error names the action."""
    service, config = model
    with pytest.raises(ServiceError, match=missing[0]) as raised:
        ConsumerRegistrar(config).ensure("orders")
    assert not raised.value.retryable
    service.rules = {("kinesis:ListStreamConsumers", STREAM)}
    assert list_consumers(kinesis_calls(config), STREAM) == []
