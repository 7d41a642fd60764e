"""What a page costs a shard: for how long Kinesis refuses reads after it.

"If a call returns [10 MiB], subsequent calls made within the next 5 seconds throw
ProvisionedThroughputExceededException."
https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetRecords.html
"""

from __future__ import annotations

from typing import Final

from sluice.source.logs.stream_log import Page

__all__ = ["page_cost"]

_SHARD_RATE: Final = 2 * 2**20
"""Bytes a second that Kinesis lets all polling consumers of a shard read together."""
_LONGEST_REFUSAL: Final = 5.0
"""Seconds."""


def page_cost(page: Page) -> float:
    """Seconds after which the shard may surely be read again. 0 if the page's size is not known."""
    return min(page.size / _SHARD_RATE, _LONGEST_REFUSAL)
