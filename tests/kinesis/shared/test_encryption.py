"""TLS between tasks and agents: all is as without it, and it is there where other hosts may connect."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.channels.channel import Channel, connect
from sluice.channels.tls import Certificate, make_certificate
from sluice.errors import OptionError, SluiceError
from sluice.kinesis.agent import agent as agent_module
from sluice.kinesis.agent.range_server import RangeServer
from sluice.kinesis.options.config import source_config_from_options
from sluice.kinesis.planner.agent_place import check_certificate
from sluice.kinesis.shared.launch import ON_THIS_HOST, AgentPlace, AgentSetup
from sluice.kinesis.shared.link import Link
from sluice.kinesis.shared.protocol import DONE, EVENT, JoinHub, ReadRange, Server, encode
from sluice.source.logs.stream_log import IteratorStart
from sluice.source.model.splits import SplitId

SECRET = b"k" * 32
PATIENT = 60.0
REQUEST = ReadRange(SplitId("clicks", "shardId-0"), IteratorStart("TRIM_HORIZON"), None, "9", 60.0)
JOIN = JoinHub(Server("10.0.0.7", 4000, b"start", b"fingerprint"))
ELSEWHERE = AgentPlace("10.0.0.1", "")


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return make_certificate()


@contextmanager
def serving(
    certificate: Certificate | None, join: Callable[[Channel, JoinHub], None] | None = None
) -> Iterator[RangeServer]:
    def read(_request: ReadRange) -> Iterator[bytes]:
        yield from (b"one", bytes(1_000_000))

    with closing(RangeServer(ON_THIS_HOST, SECRET, read, join, certificate=certificate)) as server:
        yield server


def test_a_task_is_served_over_it(certificate: Certificate) -> None:
    """One range after the other; a connection that was idle is used again."""
    with serving(certificate) as server, closing(connect(server.address, timeout=PATIENT)) as channel:
        for _ in range(3):
            channel.send(encode(REQUEST))
            frames = [bytes(channel.receive()) for _ in range(3)]
            assert frames == [EVENT + b"one", EVENT + bytes(1_000_000), DONE]
            assert channel.is_idle(0.05)


def test_a_request_that_comes_with_the_handshake_is_answered(certificate: Certificate) -> None:
    """It is in the same packet; no selector tells of it any more when the handshake is done."""
    with serving(certificate) as server:
        for _ in range(20):
            with closing(connect(server.address, timeout=PATIENT)) as channel:
                channel.send(encode(REQUEST))
                assert bytes(channel.receive()) == EVENT + b"one"


def test_links_ask_and_answer_over_it(certificate: Certificate) -> None:
    """As between the agent on the driver host and one on a worker host."""
    joined: queue.SimpleQueue[Channel] = queue.SimpleQueue()
    is_over = threading.Event()

    def join(channel: Channel, _request: JoinHub) -> None:
        joined.put(channel)
        is_over.wait(PATIENT)

    with serving(certificate, join) as server, closing(connect(server.address, timeout=PATIENT)) as channel:
        channel.send(encode(JOIN))
        left, right = (Link(each, ask_every=0.01) for each in (channel, joined.get(timeout=PATIENT)))
        for link in (left, right):
            link.start()
        large = os.urandom(2_000_000)

        def hear_answers() -> None:
            with pytest.raises((EOFError, OSError)):
                left.receive()

        thread = threading.Thread(target=hear_answers, daemon=True)
        thread.start()
        left.send(large)
        left.send(b"last")

        assert bytes(right.receive()) == large
        assert bytes(right.receive()) == b"last"
        left.close()
        right.close()
        is_over.set()
        thread.join(PATIENT)


# --- where it is -------------------------------------------------------------------------------------------


def setup(place: AgentPlace = ELSEWHERE, **options: str) -> AgentSetup:
    given = {"streamName": "clicks", "region": "us-east-1", "consumerName": "app", **options}
    config = source_config_from_options(given, streaming=True)
    assert config.fan_out is not None
    return AgentSetup.beside_driver(config, place)


@pytest.mark.parametrize(
    ("place", "options", "encrypted"),
    [
        (ON_THIS_HOST, {}, False),
        (ELSEWHERE, {}, True),
        (AgentPlace("nat.example", "127.0.0.1"), {}, False),
        (ELSEWHERE, {"agentEncryption": "none"}, False),
        (ON_THIS_HOST, {"agentEncryption": "tls"}, True),
    ],
)
def test_connections_that_other_hosts_may_open_are_encrypted(
    place: AgentPlace, options: dict[str, str], *, encrypted: bool
) -> None:
    """Unless the user says otherwise."""
    assert setup(place, **options).is_encrypted == encrypted
    assert (agent_module._certificate_of(setup(place, **options)) is not None) == encrypted


def test_an_agent_without_a_certificate_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would send records unencrypted."""

    def fail() -> Certificate:
        raise ImportError("No module named 'cryptography'")

    monkeypatch.setattr(agent_module, "make_certificate", fail)
    with pytest.raises(SluiceError, match="has no certificate: No module named"):
        agent_module._certificate_of(setup())
    with pytest.raises(SluiceError, match=r"has no certificate: .*gone\.pem"):
        agent_module._certificate_of(setup(agentCertificate="gone.pem"))


# --- a certificate of the user's own ----------------------------------------------------------------------


@pytest.fixture
def pem(tmp_path: Path) -> Callable[[serialization.KeySerializationEncryption], str]:
    """Writes a key and its certificate into a file. Returns its path."""

    def write(encryption: serialization.KeySerializationEncryption) -> str:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(timezone.utc)
        name = x509.Name([])
        certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now).sign(
            key, hashes.SHA256()
        )
        form, pem = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
        path = tmp_path / "agent.pem"
        path.write_bytes(key.private_bytes(pem, form, encryption) + certificate.public_bytes(pem))
        return str(path)

    return write


def test_a_certificate_that_can_be_read_is_taken(
    pem: Callable[[serialization.KeySerializationEncryption], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a word."""
    path = pem(serialization.NoEncryption())
    with caplog.at_level(logging.WARNING):
        check_certificate(setup(agentCertificate=path, agentEncryption="tls"))
    assert caplog.text == ""


def test_a_certificate_that_cannot_be_read_is_refused_when_the_query_starts(
    pem: Callable[[serialization.KeySerializationEncryption], str], tmp_path: Path
) -> None:
    """Else the agent would end at once, again and again, and all would be polled. Nobody is asked for the
    passphrase of a key: a query that waits for it would stand still.
    """
    gone, locked = str(tmp_path / "gone.pem"), pem(serialization.BestAvailableEncryption(b"secret"))
    for path in (gone, locked):
        with pytest.raises(OptionError, match=f"'agentCertificate' is '{path}', which can't be read .*PEM"):
            check_certificate(setup(agentCertificate=path))
    check_certificate(setup(ON_THIS_HOST, agentCertificate=gone))  # not used
