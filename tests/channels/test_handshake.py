"""Two ends that know the secret, and mean the same agent, prove it to each other. Nobody else can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.channels.channel import Address
from sluice.channels.handshake import ANSWER_BYTES, ClientHandshake, HandshakeError, ServerHandshake

SECRET = b"s" * 32
HERE = Address("10.0.0.1", 4000, SECRET, b"start" * 3)


def client(address: Address = HERE) -> ClientHandshake:
    return ClientHandshake(address.secret, address.binding)


def server(address: Address = HERE) -> ServerHandshake:
    return ServerHandshake(address.secret, address.binding)


def shake(task: ClientHandshake, agent: ServerHandshake) -> None:
    agent.receive(task.prove(agent.receive(task.hello())))


@given(st.lists(st.integers(1, 64)))
def test_both_ends_prove_the_secret(cuts: list[int]) -> None:
    """In any pieces of the client's bytes, and without taking a byte of the request behind them."""
    task, agent = client(), server()
    sizes = iter([*cuts, *[64] * 8])

    def feed(message: bytes) -> bytes:
        answer = b""
        while message:
            size = min(next(sizes), agent.missing)
            answer, message = agent.receive(message[:size]), message[size:]
        return answer

    answer = feed(task.hello())
    assert agent.was_greeted
    assert not agent.is_done
    assert len(answer) == ANSWER_BYTES

    assert feed(task.prove(answer)) == b""
    assert agent.is_done
    assert agent.missing == 0


@pytest.mark.parametrize(
    "meant",
    [
        Address("10.0.0.1", 4000, b"w" * 32, HERE.start),
        Address("10.0.0.1", 4001, SECRET, HERE.start),
        Address("10.0.0.1", 4000, SECRET, b"other"),
        # An address whose parts are split elsewhere is another address.
        Address("10.0.0.1", 4000, SECRET, HERE.start + b"1"),
    ],
    ids=["secret", "port", "start", "longer start"],
)
def test_a_client_that_means_another_agent_gets_no_answer(meant: Address) -> None:
    """A program that listens where an agent has died learns nothing that opens an agent that lives."""
    with pytest.raises(HandshakeError, match="hello"):
        server().receive(client(meant).hello())


def test_a_relayed_handshake_fails() -> None:
    """The program has the port of the dead agent, and passes all bytes on to the living one."""
    dead = Address("10.0.0.1", 4001, SECRET, b"dead" * 4)

    with pytest.raises(HandshakeError):
        shake(client(dead), server())


def test_a_server_that_does_not_know_the_secret_is_found_out() -> None:
    """For any answer: noise, the client's own message, or an answer that it overheard from an agent."""
    task = client()
    overheard = server().receive(client().hello())

    for answer in (b"n" * ANSWER_BYTES, task.hello(), overheard):
        with pytest.raises(HandshakeError, match="server"):
            task.prove(answer)


def test_a_repeated_handshake_opens_nothing() -> None:
    """Someone overheard one. The hello is taken, and the rest is not."""
    task = client()
    hello = task.hello()
    first, second = server(), server()
    proof = task.prove(first.receive(hello))
    assert first.receive(proof) == b""

    second.receive(hello)
    with pytest.raises(HandshakeError, match="client"):
        second.receive(proof)
    assert not second.is_done


def test_the_servers_own_proof_opens_nothing() -> None:
    """Somebody repeats a hello, and sends back what the server answers."""
    agent = server()
    answer = agent.receive(client().hello())

    with pytest.raises(HandshakeError, match="client"):
        agent.receive(answer[-agent.missing :])


@given(st.binary(max_size=96))
def test_noise_opens_nothing(noise: bytes) -> None:
    """And the server never waits for more bytes than its messages have."""
    agent = server()
    asked = 0
    try:
        while noise and agent.missing:
            asked += agent.missing
            piece, noise = noise[: agent.missing], noise[agent.missing :]
            agent.receive(piece)
    except HandshakeError:
        pass

    assert asked <= 64
    assert not agent.was_greeted
    assert not agent.is_done
