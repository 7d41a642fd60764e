"""Asks for records in CBOR, and in JSON where the endpoint does not know CBOR.

Data have a third more bytes in JSON, and their lengths are not known in advance. The service answers in the
form it was asked in. It knows CBOR; not every emulator does.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from botocore.exceptions import ConnectionClosedError

from sluice.aws.endpoint_state import EndpointState, endpoint_state
from sluice.aws.wire.cbor import CONTENT_TYPE, encode, is_cbor

__all__ = ["CborRequests"]

_log = logging.getLogger(__name__)

_MANY: Final = 2_000
"""From this many records on, ``auto`` asks in CBOR. To make a record batch of a page in CBOR takes half the
CPU of JSON for 10,000 records of 100 B, 7,000 of 1 KiB and 700 of 10 KiB; but about the same for 1,000 of 100
B, and twice that for 100. A subscription does not ask for a number of records, and stays in JSON: an agent
needs only the head of an event, which for records below 1 KiB takes a third of the CPU there."""

_UNSUPPORTED_MEDIA_TYPE: Final = 415

_CONTEXT_KEY: Final = "sluice_json_request"
"""The body and the content type that the SDK has written, of a request that is sent in CBOR."""
_REFUSED_KEY: Final = "sluice_cbor_refused"
"""True for a request that is sent in JSON after the endpoint has refused it in CBOR."""


class CborRequests:
    """The requests of one client. Called from several threads.

    Args:
        wire_format: one of `sluice.aws.calling.connection.WIRE_FORMATS`.
        endpoint: the URL that the client calls. All clients of the process share what is learnt about the
            endpoint.
    """

    def __init__(self, wire_format: str, endpoint: str) -> None:
        self._wire_format = wire_format
        self._endpoint = endpoint

    @property
    def _state(self) -> EndpointState:
        return endpoint_state(self._endpoint)

    def convert(self, *, params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        """Handles ``before-call``: writes the request in CBOR."""
        request = json.loads(params["body"])
        is_wanted = {
            "auto": self._state.knows_cbor is not False and request.get("Limit", 0) >= _MANY,
            "json": False,
            "cbor": True,
        }
        if not is_wanted[self._wire_format]:
            return
        if "Timestamp" in request.get("StartingPosition", ()):
            return  # JSON has microseconds, CBOR milliseconds: other records might come first
        context[_CONTEXT_KEY] = params["body"], params["headers"]["Content-Type"]
        params["body"], params["headers"]["Content-Type"] = encode(request), CONTENT_TYPE

    def fall_back(
        self, *, response: Any, request_dict: dict[str, Any], caught_exception: Any = None, **_: Any
    ) -> float | None:
        """Handles ``needs-retry``, which follows every attempt.

        An error that is not in CBOR may come from an endpoint that does not know it: endpoints answer
        with 415, with 404, by closing the connection, and in other ways. Then the request is sent once more,
        in JSON. If that works, JSON is what the endpoint knows.

        Returns:
            The seconds to wait before the SDK sends the request again; None for it not to.
        """
        context, answer = request_dict["context"], None if response is None else response[0]
        if context.pop(_REFUSED_KEY, False) and answer is not None and answer.status_code < 300:
            self._learn_json("refuses CBOR")
        written = context.pop(_CONTEXT_KEY, None)
        if self._wire_format != "auto" or written is None or not self._is_refusal(answer, caught_exception):
            return None
        context[_REFUSED_KEY] = True
        request_dict["body"], request_dict["headers"]["Content-Type"] = written
        return 0.0

    def _is_refusal(self, answer: Any, error: Any) -> bool:
        """Whether the answer to a request in CBOR may say that the endpoint does not know CBOR."""
        if answer is None:
            return isinstance(error, ConnectionClosedError) and not self._state.knows_cbor
        is_good = answer.status_code < 300
        if is_good and answer.headers.get("content-type", "").startswith("application/vnd.amazon.event"):
            return False  # its events say what they are
        if is_cbor(answer.content):
            self._state.knows_cbor = True
        elif is_good and answer.content[:1] == b"{":
            self._learn_json("answers in JSON to CBOR")
        # Other errors may come from a proxy before an endpoint that has answered in CBOR. This one says which
        # form there is: what answers there now is another one than before.
        is_other_form = answer.status_code == _UNSUPPORTED_MEDIA_TYPE
        return not is_good and (is_other_form or not self._state.knows_cbor)

    def _learn_json(self, why: str) -> None:
        if self._state.knows_cbor is not False:
            self._state.knows_cbor = False
            _log.info("%s %s: records are asked for in JSON from now on", self._endpoint, why)
