"""What the demo shows of fan-out: the consumer at the service, and the subscriptions in the log."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from integration.demo.pipeline import CONSUMER
from integration.demo.progress import PipelineError
from integration.support.kinesis import Streams

SUBSCRIBED = re.compile(r"/(\S+): subscribed; batches end at")
UNSUBSCRIBED = re.compile(r"/(\S+): no subscription covers its position")
GONE_TIMEOUT = 120.0


@dataclass(frozen=True)
class FanOutState:
    """A consumer and its subscriptions."""

    consumer: str
    status: str  # the service's, or "not registered"
    subscribed: frozenset[str]  # ids of the shards that are read by a subscription
    shards: int  # how many shards are open

    def __str__(self) -> str:
        return f"consumer {self.consumer} {self.status}, {len(self.subscribed)} of {self.shards} subscribed"


class FanOut:
    """Watches the demo's consumer; `log`: a file that the planning process and the agent write to."""

    def __init__(self, streams: Streams, stream: str, log: Path) -> None:
        self._client = streams.client
        summary = self._client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
        self._stream_arn = summary["StreamARN"]
        self._shards = len(streams.open_shards(stream))
        self._log = log
        self._offset = 0
        self._subscribed: set[str] = set()

    def state(self) -> FanOutState:
        """The state as of now."""
        self._read_log()
        status = self._consumers().get(CONSUMER, ("", "not registered"))[1]
        return FanOutState(CONSUMER, status, frozenset(self._subscribed), self._shards)

    def arn(self) -> str:
        """The consumer's ARN. Raises PipelineError if it is not registered."""
        try:
            return self._consumers()[CONSUMER][0]
        except KeyError:
            raise PipelineError(f"consumer {CONSUMER} is not registered") from None

    def wait_until_gone(self) -> None:
        """Blocks until the consumer is deregistered. Raises PipelineError if that takes too long."""
        end = time.monotonic() + GONE_TIMEOUT
        while CONSUMER in self._consumers():
            if time.monotonic() > end:
                raise PipelineError(f"consumer {CONSUMER} is still registered")
            time.sleep(0.1)

    def _consumers(self) -> dict[str, tuple[str, str]]:
        """Consumer's name to its ARN and status."""
        found = self._client.list_stream_consumers(StreamARN=self._stream_arn)["Consumers"]
        return {each["ConsumerName"]: (each["ConsumerARN"], each["ConsumerStatus"]) for each in found}

    def _read_log(self) -> None:
        with self._log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        for line in text.decode(errors="replace").splitlines():
            if found := SUBSCRIBED.search(line):
                self._subscribed.add(found[1])
            elif found := UNSUBSCRIBED.search(line):
                self._subscribed.discard(found[1])
