"""Chance that repeats itself: the same seed and thing give the same number, in any order of calls."""

from __future__ import annotations

from hashlib import blake2b


def fraction(*things: object) -> float:
    return int.from_bytes(blake2b(repr(things).encode(), digest_size=8).digest(), "big") / 2**64


def within(bounds: tuple[float, float], *things: object) -> float:
    """A number between two bounds for these things."""
    low, high = bounds
    return low + (high - low) * fraction(*things)
