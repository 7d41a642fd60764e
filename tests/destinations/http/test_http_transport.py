"""Proxies, kept connections and certificates. `integration/test_http.py` has real ones."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest
import urllib3

from sluice.destinations.http import sending, transport
from sluice.destinations.http.transport import HttpTransport, proxy_for
from sluice.errors import OptionError

PROXIES = {"http": "http://plain:3128", "https": "secure:3129"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "getproxies", dict)
    transport._pool.cache_clear()


def pool(**fields: Any) -> urllib3.PoolManager:
    return transport._pool_for(HttpTransport(**({"url": "https://host/x"} | fields)))


@pytest.mark.parametrize(
    ("url", "proxies", "expected"),
    [
        ("http://host/x", PROXIES, "http://plain:3128"),
        ("https://host:8443/x", PROXIES, "http://secure:3129"),
        ("https://direct.test/x", PROXIES, None),
        ("https://host", {}, None),
        ("https://host", {"http": "http://plain:3128"}, None),
        ("https://host", {"all": "http://any:1"}, "http://any:1"),
        ("https://host", {"https": ""}, None),
    ],
)
def test_the_proxy_of_the_environment(url: str, proxies: dict[str, str], expected: str | None) -> None:
    """By scheme; not where NO_PROXY names the host."""
    assert proxy_for(url, proxies, lambda host: host.startswith("direct")) == expected


def test_a_host_of_no_proxy_may_have_a_port() -> None:
    """The standard library compares the host with its port."""
    asked: list[str] = []
    proxy_for("https://host:8443/x", PROXIES, asked.append)

    assert asked == ["host:8443"]


def test_a_proxy_gets_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a separate header."""
    monkeypatch.setattr(transport, "getproxies", lambda: {"https": "http://me:pass%40word@proxy:1"})
    found = pool()

    assert isinstance(found, urllib3.ProxyManager)
    assert found.proxy_headers == urllib3.make_headers(proxy_basic_auth="me:pass@word")


def test_a_proxy_that_cannot_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its password."""
    monkeypatch.setattr(transport, "getproxies", lambda: {"https": "socks5://me:hunter2@proxy:1"})
    with pytest.raises(
        OptionError, match="the environment names the proxy 'socks5://\\*\\*\\*@proxy:1'"
    ) as caught:
        pool()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("proxy", "why"),
    [
        ("http://me:hun/ter2@proxy:1", "a '/', '?' or '#' of its password has to be escaped"),
        ("http://me:12#hunter2@proxy:1", "a '/', '?' or '#' of its password has to be escaped"),
        ("http://me:12?hunter2@proxy:1", "a '/', '?' or '#' of its password has to be escaped"),
        ("http://me:hun ter2@proxy:99999", "Failed to parse"),
        ("http://me:hun[ter2@proxy:1", "Invalid IPv6 URL"),
    ],
)
def test_a_proxy_with_an_odd_password_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch, proxy: str, why: str
) -> None:
    """What stands before the first `/` would be the host, and the rest of the password in the message."""
    monkeypatch.setattr(transport, "getproxies", lambda: {"https": proxy})
    with pytest.raises(OptionError, match=r"the proxy 'http://\*\*\*@proxy:\d+'") as caught:
        pool()
    assert why in str(caught.value)
    assert not any(part in str(caught.value) for part in ("hun", "ter2", "12"))


def test_connections_outlive_a_destination() -> None:
    """Destinations are made anew for every epoch."""
    assert pool() is pool(url="https://host/other", read_timeout=1.0)
    assert pool() is not pool(verify=False)
    assert pool() is not pool(connections=2)


def test_few_pools_are_kept() -> None:
    """The least recently used one goes."""
    kept = pool()
    for number in range(20):
        pool(connections=10 + number)
        assert pool() is kept

    assert transport._pool.cache_info().currsize == 8


def test_a_file_of_certificates_that_is_written_anew_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that lives for hours must not end a query that lives for months."""
    file = tmp_path / "ca.pem"
    file.touch()
    context = ssl.create_default_context()
    monkeypatch.setattr(transport, "_tls_context", lambda *_: context)
    first = pool(ca_bundle=str(file))

    assert pool(ca_bundle=str(file)) is first
    os.utime(file, (1, 1))
    assert pool(ca_bundle=str(file)) is not first


@pytest.mark.parametrize("key", ["caBundle", "clientCertificate"])
def test_a_file_of_certificates_that_cannot_be_used_is_named(tmp_path: Path, key: str) -> None:
    """With the option and the reason."""
    field = {"caBundle": "ca_bundle", "clientCertificate": "client_certificate"}[key]
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        with pytest.raises(OptionError, match=f"option '{key}' is '.*{path.name}': "):
            pool(**{field: str(path)})


@pytest.mark.parametrize("proxies", [{}, {"https": "http://proxy:1", "http": "http://proxy:1"}])
@pytest.mark.parametrize("url", ["https://host/x", "http://host/x"])
def test_all_connections_are_ours(monkeypatch: pytest.MonkeyPatch, url: str, proxies: dict[str, str]) -> None:
    """With TLS or without, directly or by a proxy; no other user of urllib3 in this process is affected."""
    monkeypatch.setattr(transport, "getproxies", lambda: proxies)
    used: Any = pool(url=url).connection_from_url(url).ConnectionCls
    other: Any = urllib3.PoolManager().connection_from_url(url).ConnectionCls

    assert used.response_class is sending._Response
    assert other.response_class is not sending._Response
