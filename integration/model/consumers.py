"""Consumers of enhanced fan-out: registered, described, listed and deregistered.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_RegisterStreamConsumer.html
"""

from __future__ import annotations

import re
from typing import Any, Final

from integration.model.chance import within
from integration.model.clock import SECOND
from integration.model.control import Control
from integration.model.core import Core, Request, invalid, require
from integration.model.errors import ModelError
from integration.model.streams import Consumer, Stream

_ARN: Final = re.compile(r"(arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/[^/]+)/consumer/([^:]+):(\d+)")


class Consumers:
    def __init__(self, core: Core, control: Control) -> None:
        self._core = core
        self._control = control

    def register_stream_consumer(self, request: Request) -> dict[str, Any]:
        core, laws = self._core, self._core.laws
        stream = core.stream_of(request)
        name = require(request, "ConsumerName")
        if name in stream.consumers:
            raise ModelError("ResourceInUseException", f"Consumer {name} of {stream.name} already exists.")
        if stream.status != "ACTIVE":
            raise ModelError(
                "ResourceInUseException", f"Stream {stream.name} is {stream.status}, not ACTIVE."
            )
        if laws.consumer_limit is not None and len(stream.consumers) >= laws.consumer_limit:
            raise ModelError("LimitExceededException", f"{stream.name} has {laws.consumer_limit} consumers.")
        creating = sum(each.status == "CREATING" for each in stream.consumers.values())
        if laws.creating_limit is not None and creating >= laws.creating_limit:
            raise ModelError("LimitExceededException", f"{creating} consumers are being created.")
        created = core.clock.now() // SECOND
        consumer = Consumer(name, f"{stream.arn}/consumer/{name}:{created}", created)
        stream.consumers[name] = consumer
        self._set_status(consumer, "CREATING")
        answer = _api_consumer(consumer)  # as it is at this moment: CREATING
        core.settle()
        return {"Consumer": answer}

    def deregister_stream_consumer(self, request: Request) -> dict[str, Any]:
        _, consumer = self.find(request)
        if consumer.status != "ACTIVE":
            raise ModelError(
                "ResourceInUseException", f"Consumer {consumer.arn} is {consumer.status}, not ACTIVE."
            )
        self._set_status(consumer, "DELETING")
        self._core.settle()
        self._core.changed()
        return {}

    def describe_stream_consumer(self, request: Request) -> dict[str, Any]:
        stream, consumer = self.find(request)
        return {"ConsumerDescription": _api_consumer(consumer) | {"StreamARN": stream.arn}}

    def list_stream_consumers(self, request: Request) -> dict[str, Any]:
        """The operation, in pages."""
        token = request.get("NextToken")
        stream, after = self._core.stream_of(request), ""
        if token is not None:
            stream, after = self._control.open_token(token, "consumers")
        found = sorted(
            (each for each in stream.consumers.values() if each.name > after), key=lambda each: each.name
        )
        page = self._core.laws.listing_page
        count = min(request.get("MaxResults", min(100, page)), page)
        answer: dict[str, Any] = {"Consumers": [_api_consumer(each) for each in found[:count]]}
        if len(found) > count:
            answer["NextToken"] = self._control.token("consumers", stream, found[count - 1].name)
        return answer

    def find(self, request: Request) -> tuple[Stream, Consumer]:
        """The consumer that a request names by ConsumerARN, or by StreamARN and ConsumerName."""
        arn = request.get("ConsumerARN")
        if arn is None:
            stream = self._core.stream_of(request)
            consumer = stream.consumers.get(require(request, "ConsumerName"))
        else:
            match = _ARN.fullmatch(arn)
            if match is None:
                raise invalid(f"ConsumerARN is not that of a consumer: {arn}")
            stream = self._core.stream_of({"StreamARN": match[1]})
            consumer = stream.consumers.get(match[2])
            if consumer is not None and consumer.arn != arn:
                consumer = None
        if consumer is None:
            raise ModelError(
                "ResourceNotFoundException", f"Consumer {arn or request.get('ConsumerName')} not found."
            )
        return stream, consumer

    def _set_status(self, consumer: Consumer, status: str) -> None:
        core = self._core
        consumer.status = status
        consumer.due = core.clock.elapsed() + within(
            core.laws.consumer_delay, core.seed, consumer.name, status, consumer.created
        )


def _api_consumer(consumer: Consumer) -> dict[str, Any]:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status,
        "ConsumerCreationTimestamp": float(consumer.created),
    }
