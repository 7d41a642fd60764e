"""The regions of AWS, as far as the installed SDK knows them."""

from __future__ import annotations

import functools
import re
from typing import Final
from urllib.parse import urlsplit

from botocore.session import Session

__all__ = ["known_regions", "region_of"]

# kinesis.eu-west-1.amazonaws.com, kinesis.cn-north-1.amazonaws.com.cn, kinesis.eu-west-1.api.aws
_REGIONAL: Final = re.compile(r"\.([a-z]+(?:-[a-z0-9]+)+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)\Z")


def region_of(endpoint: str | None) -> str | None:
    """The region in the name of one of AWS' own endpoints; None for any other URL."""
    host = urlsplit(endpoint or "").hostname or ""
    found = _REGIONAL.search(host)
    return None if found is None else found[1]


@functools.cache
def known_regions() -> frozenset[str]:
    """All regions of all partitions. Regions that are newer than the SDK are not among them."""
    session = Session()
    return frozenset(
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sts", partition_name=partition)
    )
