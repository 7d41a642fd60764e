"""Positions by shard as users write them in JSON: ``{"<shardId>": {...}}``, or that by names of streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sluice.errors import OptionError

__all__ = ["FORM", "ShardTable", "parse_shard_table", "quoted"]

StartT = TypeVar("StartT")

FORM: Final = '{"<shardId>": {"AT_SEQUENCE_NUMBER": "<digits>"}}, or AFTER_SEQUENCE_NUMBER'


@dataclass(frozen=True, slots=True)
class ShardTable(Generic[StartT]):
    """The JSON form as parsed, before it is known what is read.

    Attributes:
        starts: name to shard to the shard's start; the name is ``""`` where the form has none.
        noun: what the names stand for, ``stream`` or ``table``.
    """

    starts: Mapping[str, Mapping[str, StartT]]
    noun: str

    def resolve(self, names: Collection[str]) -> dict[tuple[str, str], StartT]:
        """The start of each shard, by name and shard.

        Args:
            names: of the streams or tables that are read.

        Raises:
            OptionError: its message continues the name of the option.
        """
        starts = dict(self.starts)
        if "" in starts:
            if len(names) != 1:
                raise OptionError(
                    f"lists shards without their {self.noun}: with several {self.noun}s it is "
                    f'{{"<{self.noun}>": {{"<shardId>": {{...}}}}}}'
                )
            starts[next(iter(names))] = starts.pop("")
        if unknown := sorted(starts.keys() - set(names)):
            raise OptionError(
                f"names {self.noun} '{unknown[0]}', which is not read: the {self.noun}s are "
                + ", ".join(sorted(names))
            )
        return {(name, shard): start for name, shards in starts.items() for shard, start in shards.items()}


def parse_shard_table(
    text: str, noun: str, kinds: Collection[str], parse_start: Callable[[str, Any], StartT]
) -> ShardTable[StartT]:
    """Reads the JSON form.

    Args:
        text: the JSON.
        noun: of `ShardTable`.
        kinds: the positions that a shard may have.
        parse_start: makes the start of a shard from its id and the value that the JSON has for it.

    Raises:
        OptionError: its message continues the name of the option.
    """
    try:
        return _parse(text, noun, kinds, parse_start)
    except RecursionError as error:  # it is nested too deeply
        raise OptionError(f"is not JSON ({error}): {quoted(text)}") from None


def _parse(
    text: str, noun: str, kinds: Collection[str], parse_start: Callable[[str, Any], StartT]
) -> ShardTable[StartT]:
    try:
        parsed = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise OptionError(f"is not JSON ({error}): {quoted(text)}") from None
    if not parsed:
        raise OptionError(f"lists no shard: expected {FORM}")

    def is_position(value: Any) -> bool:
        # A misspelt AT_SEQUENCE_NUMBER must not pass for a shard. A shard's value is an object, not a number.
        return isinstance(value, dict) and any(
            key.upper() in kinds or not isinstance(inner, dict) for key, inner in value.items()
        )

    if all(map(is_position, parsed.values())):
        parsed = {"": parsed}
    for name, shards in parsed.items():
        if not isinstance(shards, dict) or not shards or (name and is_position(shards)):
            raise OptionError(
                f"has {quoted(shards)} for '{name}': expected {FORM}, in every entry the same way"
            )
    return ShardTable(
        {
            name: {shard: parse_start(shard, value) for shard, value in shards.items()}
            for name, shards in parsed.items()
        },
        noun,
    )


def quoted(value: Any) -> str:
    """A value of the JSON as messages show it, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise OptionError(f"has '{next(key for key in keys if keys.count(key) > 1)}' more than once")
    return dict(pairs)
