"""Lists the shards of a stream, for the source and for the destination that aggregates records by shard.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ListShards.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from sluice.aws.calling.calls import Calls
from sluice.errors import ServiceError

__all__ = ["list_shards"]

T = TypeVar("T")

_RESTARTS: Final = 2
"""How often a listing starts again because its token has expired."""


def list_shards(
    calls: Calls, stream: str, address: Mapping[str, str], read: Callable[[Mapping[str, Any]], T]
) -> list[T]:
    """Lists all shards, closed ones included.

    Args:
        calls: of ``ListShards``.
        stream: the stream's name, for messages.
        address: ``StreamName`` or ``StreamARN``, as the request's parameter.
        read: takes a shard as the API describes it, and returns an element of the result.

    Raises:
        ServiceError: the shards cannot be listed.
    """
    restarts = 0
    while True:
        try:
            return _list_pages(calls, stream, address, read)
        except ServiceError as error:
            # A token is valid for five minutes. A listing that takes longer starts again.
            if error.code != "ExpiredNextTokenException" or restarts == _RESTARTS:
                raise
        restarts += 1


def _list_pages(
    calls: Calls, stream: str, address: Mapping[str, str], read: Callable[[Mapping[str, Any]], T]
) -> list[T]:
    shards: list[T] = []
    request = dict(address)
    while True:
        page, token = calls.call(
            "ListShards",
            stream,
            request,
            lambda answer: ([read(shard) for shard in answer["Shards"]], answer.get("NextToken")),
        )
        shards += page
        if not token:
            return shards
        # The token names the stream; the service refuses a request that has both.
        request = {"NextToken": token}
