"""Makes a subscriber from the source's options."""

from __future__ import annotations

from collections.abc import Callable

from sluice.kinesis.fanout.subscriber import Subscriber, SubscriberSettings
from sluice.kinesis.fanout.subscription import OPERATION, Subscribing, Subscription
from sluice.kinesis.options import SourceConfig
from sluice.source.log import IteratorStart
from sluice.source.splits import SplitId

__all__ = ["open_subscriber"]


def open_subscriber(
    config: SourceConfig, arn: Callable[[], str], split: SplitId, start: IteratorStart
) -> Subscriber:
    """A subscriber that calls nobody before its first event is asked for.

    Args:
        arn: the consumer's, asked for at every call: the consumer may be registered anew.
    """

    def subscribe(split: SplitId, start: IteratorStart) -> Subscription:
        return Subscribing(config.connection, arn())(split, start)

    return Subscriber(subscribe, split, start, SubscriberSettings(config.backoffs[OPERATION]))
