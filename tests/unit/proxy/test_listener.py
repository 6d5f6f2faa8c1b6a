"""Which of several sockets on one port the kernel gives new connections to."""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from poise.proxy.listener import SharedPort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be told")
CALLERS = 64


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listen(sockets: ExitStack, port: int = 0) -> SharedPort:
    listening = socket.create_server(("127.0.0.1", port), reuse_port=True, backlog=CALLERS)
    listening.setblocking(False)
    return SharedPort(sockets.enter_context(listening))


def port_of(shared: SharedPort) -> int:
    port: int = shared.socket.getsockname()[1]
    return port


def accepted(sockets: ExitStack, *listening: SharedPort) -> list[int]:
    """How many of new callers each of the sockets is given."""
    for _ in range(CALLERS):
        sockets.enter_context(socket.create_connection(("127.0.0.1", port_of(listening[0]))))
    counts = []
    for shared in listening:
        counts.append(0)
        with suppress(BlockingIOError):
            while True:
                sockets.enter_context(shared.socket.accept()[0])
                counts[-1] += 1
    return counts


@pytest.mark.parametrize("leaving", [0, 1])
def test_whoever_leaves_gives_new_connections_to_the_other(sockets: ExitStack, leaving: int) -> None:
    first = listen(sockets)
    both = [first, listen(sockets, port_of(first))]
    assert all(accepted(sockets, *both)), "until then they take turns"
    both[leaving].hand_over()
    expected = [CALLERS, CALLERS]
    expected[leaving] = 0
    assert accepted(sockets, *both) == expected


def test_a_chain_of_takeovers(sockets: ExitStack) -> None:
    older = listen(sockets)
    for _ in range(4):
        newer = listen(sockets, port_of(older))
        assert all(accepted(sockets, older, newer)), "what the last one set is gone"
        older.hand_over()
        assert accepted(sockets, older, newer) == [0, CALLERS]
        older.socket.close()
        assert accepted(sockets, newer) == [CALLERS]
        older = newer


def test_alone_or_among_many_nothing_changes(sockets: ExitStack) -> None:
    first = listen(sockets)
    first.hand_over()
    assert accepted(sockets, first) == [CALLERS]
    three = [first, listen(sockets, port_of(first)), listen(sockets, port_of(first))]
    first.hand_over()
    assert all(accepted(sockets, *three))


def test_a_port_that_is_not_shared(sockets: ExitStack) -> None:
    alone = SharedPort(sockets.enter_context(socket.create_server(("127.0.0.1", 0))))
    alone.socket.setblocking(False)
    alone.hand_over()
    assert accepted(sockets, alone) == [CALLERS]
