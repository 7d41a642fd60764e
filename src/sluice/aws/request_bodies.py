"""Bodies of requests that the library writes itself, because the SDK looks at every field of every entry.

A parameter given as `Ready` goes past the SDK: it checks and writes a stand-in of one entry, and when the
request is made, right before it is signed and sent, what is ready takes the stand-in's place. All else of
the request (other parameters, endpoint, headers, signature) is the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

__all__ = ["Ready", "insert_body", "substitute"]

_CONTEXT_KEY: Final = "sluice_ready"
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True)
class Ready:
    """A parameter that is known to be valid.

    Attributes:
        value: of strings, numbers, bytes (base64 on the wire), lists, mappings and `msgspec.Struct`, under
            the names of the API.
        stand_in: a valid value of the parameter, as the SDK takes it; short.
    """

    value: Any
    stand_in: Any


def substitute(*, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    """Of the event ``before-parameter-build``: shows the SDK stand-ins."""
    ready = {name: each for name, each in params.items() if isinstance(each, Ready)}
    if not ready:
        return
    if _protocol(model) != "json":
        # An SDK to come may speak another protocol with the same service: then it writes the body.
        params.update(
            {name: msgspec.to_builtins(each.value, builtin_types=(bytes,)) for name, each in ready.items()}
        )
        return
    params.update({name: each.stand_in for name, each in ready.items()})
    context[_CONTEXT_KEY] = {name: each.value for name, each in ready.items()}


def insert_body(*, params: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    """Of the event ``before-call``: puts what is ready into the body."""
    ready = context.get(_CONTEXT_KEY)
    if ready is not None:
        params["body"] = _encoder.encode(msgspec.json.decode(params["body"]) | ready)


def _protocol(model: Any) -> str:
    service = model.service_model
    # Older SDKs know one protocol a service.
    return str(getattr(service, "resolved_protocol", None) or service.metadata["protocol"])
