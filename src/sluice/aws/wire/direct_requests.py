"""Sends the requests whose bodies the library writes, without the SDK's events about each request.

They take as much CPU as signing and sending. The SDK still chooses endpoint, headers and credentials, signs
the request, sends it (connections, TLS, proxies, errors of the network), and raises what a refusal says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from botocore.awsrequest import AWSRequest
from botocore.endpoint import convert_to_response_dict

from sluice.aws.wire.request_bodies import is_prepared

__all__ = ["DirectRequests"]

_VERSION: Final = "v4"
"""The SDK's name of this way to sign."""


class DirectRequests:
    """The requests of one client. Called from several threads.

    Args:
        client: the SDK's.
        parse: reads an answer as the SDK has it, by the shape that the API's model gives it.
    """

    def __init__(self, client: Any, parse: Callable[[Mapping[str, Any], Any], Any]) -> None:
        # The SDK has no public name for its session. Where it is another one, the SDK sends all requests.
        self._session = getattr(getattr(client, "_endpoint", None), "http_session", None)
        self._events = client.meta.events
        self._parse = parse

    def send(
        self,
        *,
        model: Any,
        params: Mapping[str, Any],
        request_signer: Any,
        context: Mapping[str, Any],
        **_: Any,
    ) -> tuple[Any, Any] | None:
        """Handles ``before-call``, after the body was inserted.

        Returns:
            The answer, and what it says; None for the SDK to send the request.
        """
        version = context.get("auth_type") or request_signer.signature_version
        if self._session is None or version != _VERSION or not is_prepared(context):
            return None
        if model.has_event_stream_output:
            return None
        # The endpoint may say what to sign for.
        signing = context.get("signing", {})
        auth = request_signer.get_auth_instance(
            signing.get("signing_name") or request_signer.signing_name,
            signing.get("region") or request_signer.region_name,
            _VERSION,
        )
        unsigned = AWSRequest("POST", params["url"], params["headers"], params["body"])
        auth.add_auth(unsigned)
        request = unsigned.prepare()
        # Whoever stands in for the network listens to this event of the SDK.
        event = f"before-send.{model.service_model.service_id.hyphenize()}.{model.name}"
        stand_ins = self._events.emit(event, request=request)
        answer = next((each for _, each in stand_ins if each is not None), None)
        if answer is None:
            answer = self._session.send(request)
        return answer, self._parse(convert_to_response_dict(answer, model), model.output_shape)
