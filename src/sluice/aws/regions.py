"""The regions and hosts of AWS, as far as the installed SDK knows them."""

from __future__ import annotations

import functools
import re
from typing import Final
from urllib.parse import urlsplit

from botocore.session import Session

__all__ = ["region_of", "service_of"]

# kinesis.eu-west-1.amazonaws.com, kinesis.cn-north-1.amazonaws.com.cn, kinesis.eu-west-1.api.aws
_REGIONAL: Final = re.compile(r"\.([a-z]+(?:-[a-z0-9]+)+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)\Z")


_HOST_WORDS: Final = {
    "dynamodb": ("dynamodb", "ddb"),
    "firehose": ("firehose",),
    "kinesis": ("kinesis", "data-kinesis", "control-kinesis"),
    "s3": ("s3",),
    "sqs": ("sqs", "queue"),
    "sts": ("sts",),
}
"""By service, the labels of its hosts, without FIPS and dual-stack hosts."""


def service_of(host: str) -> str | None:
    """Which of the services that are called here AWS itself serves at a host; None for any other host.

    Hosts of machines, load balancers and API gateways below ``amazonaws.com`` belong to their users.
    """
    if "." not in host or host[-1].isdigit():  # a name of this network, or an address
        return None
    suffix = next((each for each in _dns_suffixes() if host.endswith(f".{each}")), None)
    if suffix is None:
        return None
    labels = [label.removesuffix("-fips") for label in host.removesuffix(f".{suffix}").split(".")]
    if "dynamodb" in labels and any(re.fullmatch(r"(.*-)?streams", label) for label in labels):
        return "dynamodbstreams"
    return next((service for service, words in _HOST_WORDS.items() if not {*words}.isdisjoint(labels)), None)


@functools.cache
def _dns_suffixes() -> tuple[str, ...]:
    """Of all partitions, dual-stack hosts included; longer ones first."""
    found: set[str] = set()
    for partition in Session().get_component("data_loader").load_data("endpoints")["partitions"]:
        variants = partition["defaults"].get("variants", ())
        found |= {each["dnsSuffix"] for each in (partition, *variants) if "dnsSuffix" in each}
    return tuple(sorted(found, key=len, reverse=True))


def region_of(endpoint: str | None) -> str | None:
    """The region in the name of one of AWS' own endpoints; None for any other URL."""
    host = urlsplit(endpoint or "").hostname or ""
    found = _REGIONAL.search(host)
    return None if found is None else found[1]
