"""The options of enhanced fan-out, and their parsed form, `FanOutConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.aws.names.arns import CONSUMER_ARN_FORM, NAME_FORM, ConsumerArn, parse_name
from sluice.kinesis.options.agent import missing_for_agents
from sluice.kinesis.options.streams import StreamRef
from sluice.options import Kind, Option, OptionValues, choice

__all__ = ["FAN_OUT_OPTIONS", "FanOutConfig", "fan_out_from_options"]


RECORD_PUBLISHER = Option(
    "recordPublisher",
    choice("efo", "polling"),
    None,
    "How records are fetched: `efo` (enhanced fan-out) or `polling`.",
    shown_default="`efo` when a consumer is named, else `polling`",
)
CONSUMER_NAME = Option(
    "consumerName",
    Kind("string", NAME_FORM, parse_name),
    None,
    "Name of the fan-out consumer, registered with every stream of the query.",
    shown_default="required for `efo` unless ARNs are given",
    billed=True,
)
CONSUMER_REGISTRATION = Option(
    "consumerRegistration",
    choice("lazy", "eager", "none"),
    None,
    "Who registers a missing consumer: the query when it starts (`lazy`; `eager` means the same), or you "
    "(`none`, with `consumerArn`).",
    shown_default="`lazy`; `none` when ARNs are given",
)
CONSUMER_DEREGISTRATION = Option(
    "consumerDeregistration",
    choice("auto", "never"),
    "auto",
    "`auto`: when it stops, the query deregisters a consumer that it registered. `never`: the consumer "
    "stays.",
)
CONSUMER_ARN = Option(
    "consumerArn",
    Kind("arn", CONSUMER_ARN_FORM, ConsumerArn.parse),
    None,
    "ARN of a consumer that you registered, if the query reads one stream.",
)
CONSUMER_ARNS = Option(
    "consumerArn.*",
    Kind("arn", CONSUMER_ARN_FORM, ConsumerArn.parse),
    None,
    "The same for one of several streams: `consumerArn.<stream>`. Case is ignored.",
)
FALLBACK = Option(
    "subscribeToShardFallback",
    choice("polling", "fail"),
    "polling",
    "If fan-out does not deliver records: read them by `polling`, or `fail` the query.",
)

FAN_OUT_OPTIONS: Final[tuple[Option[Any], ...]] = (
    RECORD_PUBLISHER,
    CONSUMER_NAME,
    CONSUMER_REGISTRATION,
    CONSUMER_DEREGISTRATION,
    CONSUMER_ARN,
    CONSUMER_ARNS,
    FALLBACK,
)


@dataclass(frozen=True)
class FanOutConfig:
    """The options of enhanced fan-out as plain data, which Spark may pickle.

    Attributes:
        consumer_name: None with `registration` ``none``.
        registration: ``lazy``, ``eager`` or ``none``.
        deregister: deregister a consumer that this query registered when the query is stopped.
        arns: stream's name to its consumer's ARN; empty unless `registration` is ``none``.
        may_poll: if fan-out does not deliver records, poll them; False makes that an error.
    """

    consumer_name: str | None = None
    registration: str = "lazy"
    deregister: bool = True
    arns: Mapping[str, str] = field(default_factory=dict)
    may_poll: bool = True

    @property
    def region(self) -> str | None:
        """The region that the consumers' ARNs name; None without ARNs."""
        return next((ConsumerArn.parse(arn).region for arn in self.arns.values()), None)


def fan_out_from_options(values: OptionValues, streams: Sequence[StreamRef]) -> FanOutConfig | None:
    """Reads the options of fan-out; None for polling. `OptionValues.check` raises the errors.

    Args:
        values: read with FAN_OUT_OPTIONS declared.
        streams: the streams that are read.
    """
    if values.foreign_name(CONSUMER_NAME) and not values.mentions(RECORD_PUBLISHER):
        # Alone, it does nothing in the other connector. Here it would register a consumer, which costs money.
        values.reject(
            CONSUMER_NAME.key,
            f"would turn fan-out on here, which AWS charges for: leave it out to poll, or give "
            f"'{RECORD_PUBLISHER.key}' efo as well",
        )
    has_arns = values.mentions(CONSUMER_ARN) or values.mentions(CONSUMER_ARNS)
    is_named = has_arns or values.mentions(CONSUMER_NAME)
    if (values.get(RECORD_PUBLISHER) or ("efo" if is_named else "polling")) == "polling":
        _refuse_with_polling(values)
        return None
    if missing := missing_for_agents():
        why = (
            f"fan-out needs Linux or macOS, as Python has no {missing} here; leave it out to read by polling"
        )
        values.reject_each(FAN_OUT_OPTIONS, why)
        return None
    registration = values.get(CONSUMER_REGISTRATION) or ("none" if has_arns else "lazy")
    arns: Mapping[str, str] = {}
    if registration == "none":
        arns = _read_arns(values, streams)
    elif has_arns:
        why = f"'{CONSUMER_REGISTRATION.key}' is {registration}: a consumer's ARN is for none"
        values.reject_each((CONSUMER_ARN, CONSUMER_ARNS), why)
    elif not is_named:
        values.reject(
            CONSUMER_NAME.key,
            f"is required with '{RECORD_PUBLISHER.key}' efo: {NAME_FORM} (or give '{CONSUMER_ARN.key}')",
        )
    return FanOutConfig(
        consumer_name=None if registration == "none" else values.get(CONSUMER_NAME),
        registration=registration,
        deregister=registration != "none" and values.get(CONSUMER_DEREGISTRATION) == "auto",
        arns=arns,
        may_poll=values.get(FALLBACK) == "polling",
    )


def _refuse_with_polling(values: OptionValues) -> None:
    # Refused, because the user would believe that the option works although it does nothing.
    if values.given(RECORD_PUBLISHER):
        why = f"'{RECORD_PUBLISHER.key}' is polling: it is for efo only"
    else:
        why = f"it is for fan-out, which needs '{CONSUMER_NAME.key}' or '{CONSUMER_ARN.key}'"
    values.reject_each(FAN_OUT_OPTIONS[1:], why)


def _read_arns(values: OptionValues, streams: Sequence[StreamRef]) -> Mapping[str, str]:
    found = _match_arns(values, streams)
    regions = {arn.region for _, arn in found.values()}
    if len(regions) > 1:
        values.reject(CONSUMER_ARNS.key, f"are in {' and '.join(sorted(regions))}: allowed is one region")
    for stream in streams:
        keyed = f"{CONSUMER_ARN.key}.{stream.name}"
        if stream.name in found:
            _check_arn(values, stream, *found[stream.name])
        elif not values.mentions(CONSUMER_ARN) and not values.mentions_key(keyed):
            # An ARN that was given and is not found has been refused already.
            missing = CONSUMER_ARN.key if len(streams) == 1 else keyed
            values.reject(
                missing, f"is required with '{CONSUMER_REGISTRATION.key}' none: {CONSUMER_ARN_FORM}"
            )
    return {name: arn.text for name, (_, arn) in found.items()}


def _match_arns(values: OptionValues, streams: Sequence[StreamRef]) -> dict[str, tuple[str, ConsumerArn]]:
    """Stream's name to the key under which the user gave its consumer's ARN, and that ARN."""
    found: dict[str, tuple[str, ConsumerArn]] = {}
    names = [stream.name for stream in streams]
    arn = values.get(CONSUMER_ARN)
    if arn is not None and len(names) > 1:
        values.reject_value(
            CONSUMER_ARN,
            f"it is for one stream: give '{CONSUMER_ARN.key}.<stream>' for each of {', '.join(names)}",
        )
    elif arn is not None and names:
        found[names[0]] = (CONSUMER_ARN.key, arn)
    for suffix, keyed_arn in values.with_prefix(CONSUMER_ARNS).items():
        key = f"{CONSUMER_ARN.key}.{suffix}"
        # Spark passes keys in lower case, but streams' names are case-sensitive.
        matching = [name for name in names if name.lower() == suffix.lower()]
        if len(matching) > 1:
            both = " and ".join(f"'{name}'" for name in matching)
            values.reject(
                key, f"could be for {both}, as keys have no case: read them apart, or give 'consumerName'"
            )
        elif matching and matching[0] in found:
            values.reject(key, f"and '{found[matching[0]][0]}' exclude one another: give one of them")
        elif matching:
            found[matching[0]] = (key, keyed_arn)
        elif names:
            values.reject(
                key, f"is {keyed_arn.text!r}: no such stream is read: allowed are {', '.join(names)}"
            )
    return found


def _check_arn(values: OptionValues, stream: StreamRef, key: str, arn: ConsumerArn) -> None:
    given = f"is {arn.text!r}:"
    name = values.get(CONSUMER_NAME)
    if arn.stream != stream.name:
        values.reject(key, f"{given} that is a consumer of stream '{arn.stream}', not of '{stream.name}'")
    elif stream.arn not in (None, arn.stream_arn):
        values.reject(key, f"{given} that is not a consumer of {stream.arn}")
    elif name not in (None, arn.consumer):
        values.reject(key, f"{given} '{CONSUMER_NAME.key}' is '{name}'; leave it out, or let them agree")
