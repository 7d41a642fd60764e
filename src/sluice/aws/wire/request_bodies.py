"""Writes parameters in the SDK's place, which looks at every field of every entry of large requests.

The SDK checks and writes a placeholder of one entry for each `PreparedParameter`. Right before the request
is signed and sent, the prepared value replaces the placeholder in the body. Other parameters, endpoint,
headers and signature stay the SDK's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sluice.instants import MICROS_PER_SECOND, micros_to_datetime

__all__ = ["PreparedParameter", "exact_time", "insert_body", "substitute"]

_CONTEXT_KEY: Final = "sluice_prepared"
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True)
class PreparedParameter:
    """A parameter that is known to be valid.

    Attributes:
        value: strings, numbers, bytes (base64 on the wire), lists, mappings and `msgspec.Struct`, with the
            API's names of fields.
        placeholder: a short valid value of the parameter, as the SDK takes it.
    """

    value: Any
    placeholder: Any


def exact_time(micros: int, **others: Any) -> Any:
    """An instant as a parameter, to the microsecond: older SDKs cut it to whole seconds, which would start
    reading up to a second early.

    Args:
        micros: since the epoch.
        others: fields of a structure that has it as ``Timestamp``; none for the instant alone.
    """
    seconds, moment = micros / MICROS_PER_SECOND, micros_to_datetime(micros)
    if not others:
        return PreparedParameter(seconds, moment)
    return PreparedParameter({**others, "Timestamp": seconds}, {**others, "Timestamp": moment})


def substitute(*, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    """Handles ``before-parameter-build``: shows placeholders to the SDK."""
    prepared = {name: each for name, each in params.items() if isinstance(each, PreparedParameter)}
    if not prepared:
        return
    if _protocol(model) != "json":
        # A later SDK may speak another protocol with the same service: then it writes the body itself.
        params.update(
            {name: msgspec.to_builtins(each.value, builtin_types=(bytes,)) for name, each in prepared.items()}
        )
        return
    params.update({name: each.placeholder for name, each in prepared.items()})
    context[_CONTEXT_KEY] = {name: each.value for name, each in prepared.items()}


def insert_body(*, params: dict[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    """Handles ``before-call``: puts the prepared values into the body."""
    prepared = context.get(_CONTEXT_KEY)
    if prepared is not None:
        params["body"] = _encoder.encode(msgspec.json.decode(params["body"]) | prepared)


def _protocol(model: Any) -> str:
    service = model.service_model
    # In older SDKs a service has one protocol.
    return str(getattr(service, "resolved_protocol", None) or service.metadata["protocol"])
