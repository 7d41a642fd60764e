"""Classifies hosts by the text of their name or address."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback", "is_unspecified"]


def is_unspecified(host: str) -> bool:
    """Whether the address stands for all addresses of a host."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback address by its text. A name may be loopback here and not elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
