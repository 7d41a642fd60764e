"""How tests steer a model that runs behind a socket: ``POST /_model/<verb>`` with JSON.

`Steering` is the client; its methods are those of `KinesisModel` where there is one of the name.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from integration.model.errors import ModelError
from integration.model.faults import FaultPlan
from integration.model.laws import MIB
from integration.model.oracle import Accepted
from integration.model.sending import WireFault, WireFaults
from integration.model.service import KinesisModel

PREFIX: Final = "/_model/"

_Parameters = dict[str, Any]


def _clock(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    model.clock.step(given.get("step", 0.0))
    model.clock.advance(given.get("advance", 0.0))
    return {"now": model.clock.now(), "elapsed": model.clock.elapsed()}


def _laws(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    model.laws = dataclasses.replace(model.laws, **given)
    return {}


def _faults(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    model.faults = FaultPlan(given.get("rates"), seed=given.get("seed", 0))
    return {}


def _force(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    error = ModelError(given["code"], given.get("message"))
    model.faults.force(given["operation"], error, times=given.get("times", 1))
    return {}


def _wire(_: KinesisModel, wire: WireFaults, given: _Parameters) -> Any:
    wire.set(*(WireFault(**each) for each in given["faults"]))
    return {}


def _put(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    return [
        [shard, record.sequence_number]
        for key, data, arrival in given["records"]
        for shard, record in [model.put(given["stream"], key, base64.b64decode(data), arrival=arrival)]
    ]


def _fill(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    open_shards = [
        int(shard["HashKeyRange"]["StartingHashKey"])
        for shard in model.describe_shards(given["stream"])
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]
    data = bytes(given["size"])
    for number in range(given["records"]):
        for hash_key in open_shards:
            model.put(given["stream"], f"key-{number}", data, explicit_hash_key=hash_key)
        model.clock.advance(given["size"] / given["rate"])
    return len(open_shards) * given["records"]


def _silence(model: KinesisModel, _: WireFaults, given: _Parameters) -> Any:
    found = model.subscriptions(given["stream"], given["shard"])
    for subscription in found:
        subscription.fall_silent()
    return len(found)


def _status(model: KinesisModel, wire: WireFaults, _: _Parameters) -> Any:
    refusals = [[*what, count] for what, count in model.refusals.items()]
    fired = [[*what, count] for what, count in model.faults.fired.items()]
    return {"calls": model.calls, "refusals": refusals, "fired": fired, "fired_on_wire": wire.fired}


_VERBS: Final[Mapping[str, Callable[[KinesisModel, WireFaults, _Parameters], Any]]] = {
    "add_stranger": lambda model, _, given: model.add_stranger(**given),
    "clock": _clock,
    "create": lambda model, _, given: model.create(**given),
    "expire_credentials": lambda model, _, given: model.expire_credentials(*given["access_keys"]),
    "expire_iterators": lambda model, _, given: model.expire_iterators(**given),
    "faults": _faults,
    "fill": _fill,
    "force": _force,
    "hide_shard": lambda model, _, given: model.hide_shard(**given),
    "laws": _laws,
    "merge": lambda model, _, given: model.merge(**given),
    "oracle": lambda model, _, given: model.oracle.records(**given),
    "put": _put,
    "renew_credentials": lambda model, _, given: model.renew_credentials(**given),
    "scale": lambda model, _, given: model.scale(**given),
    "silence": _silence,
    "split": lambda model, _, given: model.split(**given),
    "status": _status,
    "wire": _wire,
}


def steer(model: KinesisModel, wire: WireFaults, verb: str, body: bytes) -> tuple[int, bytes]:
    """Carries out a verb: the HTTP status, and the answer in JSON."""
    function = _VERBS.get(verb)
    if function is None:
        return 404, msgspec.json.encode({"error": f"no {verb}; there are {sorted(_VERBS)}"})
    try:
        return 200, msgspec.json.encode(function(model, wire, json.loads(body or b"{}")))
    except (ModelError, KeyError, TypeError, ValueError) as error:
        return 400, msgspec.json.encode({"error": repr(error)})


class Steering:
    """Steers the model of a server, from any process."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def do(self, verb: str, **parameters: Any) -> Any:
        """Carries out a verb."""
        request = urllib.request.Request(  # noqa: S310 - our own loopback address
            f"{self.endpoint}{PREFIX}{verb}",
            data=json.dumps(parameters).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=120) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{verb}: {error.read().decode()}") from None

    def create(self, name: str, shards: int = 1) -> list[str]:
        """See `KinesisModel.create`."""
        return list(self.do("create", name=name, shards=shards))

    def put(self, stream: str, records: Iterable[tuple[str, bytes]]) -> list[tuple[str, str]]:
        """Puts records past all limits and faults; the shard and the sequence number of each."""
        given = [(key, base64.b64encode(data).decode(), None) for key, data in records]
        return [(shard, number) for shard, number in self.do("put", stream=stream, records=given)]

    def fill(self, stream: str, records: int, size: int, *, rate: float = MIB) -> int:
        """Puts `records` of `size` bytes to each open shard, and returns how many in all.

        `rate`: bytes a second and shard of their producer. So much time passes, for the service alone.
        """
        return int(self.do("fill", stream=stream, records=records, size=size, rate=rate))

    def oracle(self, stream: str) -> list[Accepted]:
        """See `Oracle.records`."""
        rows = self.do("oracle", stream=stream)
        return [Accepted(**row)._replace(data=base64.b64decode(row["data"])) for row in map(_named, rows)]

    def set_wire_faults(self, *faults: WireFault) -> None:
        """Puts faults on the wire in the place of those that were there."""
        self.do("wire", faults=[dataclasses.asdict(fault) for fault in faults])

    def set_faults(self, rates: Mapping[str, Mapping[str, float]] | None = None, *, seed: int = 0) -> None:
        """See `FaultPlan`."""
        self.do("faults", rates=rates, seed=seed)

    def set_laws(self, **laws: Any) -> None:
        """Changes some of the laws."""
        self.do("laws", **laws)


def _named(row: list[Any]) -> dict[str, Any]:
    return dict(zip(Accepted._fields, row, strict=True))
