"""Describes streams and lists their shards, for the source and for the destination that aggregates by shard.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ListShards.html
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from sluice.aws.calling.calls import Calls
from sluice.aws.calling.clients import client_for
from sluice.errors import ServiceError, SluiceError
from sluice.retry import Backoff

__all__ = ["describe_stream", "list_shards"]

T = TypeVar("T")

_ONCE: Final = Backoff(max_retries=0, base=1.0, max=1.0, exponent=1.0)
_RESTARTS: Final = 2
"""How often a listing starts again because its token has expired."""


def describe_stream(
    calls: Calls, stream: str, address: Mapping[str, str], read: Callable[[Mapping[str, Any]], T]
) -> T:
    """Calls ``DescribeStreamSummary``.

    Args:
        calls: of ``DescribeStreamSummary``.
        stream: the stream's name, for messages.
        address: ``StreamName`` or ``StreamARN``, as the request's parameter.
        read: takes the answer, and returns the result.

    Raises:
        ServiceError: the stream cannot be described. If it does not exist, the error names the region and the
            stream that is spelled most like it.
    """
    try:
        return calls.call("DescribeStreamSummary", stream, address, read)
    except ServiceError as error:
        if error.missing:
            error.args = (f"{error}{_hint(calls, stream, str(error))}",)
        raise


def _hint(calls: Calls, stream: str, message: str) -> str:
    region = f"region {client_for(calls.connection, calls.service).meta.region_name}"
    hint = "" if region in message else f" (this is {region}: option 'region' names another one)"
    try:  # a query does not need the permission
        once = replace(calls, backoffs={"ListStreams": _ONCE})
        names = once.call("ListStreams", "", {}, lambda answer: list(answer["StreamNames"]))
    except SluiceError:
        return hint
    near = difflib.get_close_matches(stream, [name for name in names if name != stream], n=1)
    return f"{hint}; the stream that is spelled most like it is '{near[0]}'" if near else hint


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
