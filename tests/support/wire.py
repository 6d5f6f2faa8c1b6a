"""One end of a TCP connection in a test: exact bytes out in exact writes, every read kept with its time."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

Result = TypeVar("Result")

DEADLINE_S = 10.0
"""How long any wait of the kit may take before the test fails: generous, as a passing test never comes near it."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class PeerGone(ConnectionError):
    """The other side closed the connection while the test still wanted something of it."""


async def turn() -> None:
    """Let everybody else on the loop run, so that what was written is read before more is."""
    for _ in range(3):
        await asyncio.sleep(0)


async def within(seconds: float, awaitable: Awaitable[Result], what: str) -> Result:
    """The awaitable's result; fails the test with `what` if it takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s for {what}") from None


async def until(ready: Callable[[], bool], what: Callable[[], str] | str, within_s: float = DEADLINE_S) -> None:
    """Come back once `ready()` holds. For state that nobody announces; what is announced is awaited instead."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not ready():
        assert loop.time() < end_s, f"waited {within_s} s for {what if isinstance(what, str) else what()}"
        await asyncio.sleep(0.002)


class Wire(asyncio.Protocol):
    """A connection's bytes. `received` is what came and was not taken yet; `reads` is (time, size) of each read."""

    def __init__(self, made: "Callable[[Wire], None] | None" = None) -> None:
        self.received = bytearray()
        self.reads: list[tuple[float, int]] = []
        self.opened_at_s = 0.0
        self.peer_closed_at_s: float | None = None
        self.error: Exception | None = None
        self.write_paused = False
        self.written_bytes = 0
        self._made = made
        self._waiters: list[asyncio.Future[None]] = []

    # -- what the loop reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.loop = asyncio.get_running_loop()
        self.opened_at_s = self.loop.time()
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        self.reads.append((self.loop.time(), len(data)))
        self.received += data
        self._wake()

    def eof_received(self) -> None:
        self._peer_closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._peer_closed()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        self._wake()

    # -- reading

    @property
    def peer_closed(self) -> bool:
        """Whether the other side has closed or reset the connection."""
        return self.peer_closed_at_s is not None

    async def wait(self, ready: Callable[[], bool], what: str, within_s: float = DEADLINE_S) -> None:
        """Come back when `ready()` holds, which is looked at after every event of this connection."""
        if ready():
            return
        try:
            async with asyncio.timeout(within_s):
                while not ready():
                    waiter = self.loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        except TimeoutError:
            left = bytes(self.received[:300])
            raise AssertionError(f"waited {within_s} s for {what}; not taken yet: {left!r}") from None

    async def take_until(self, end: bytes, within_s: float = DEADLINE_S) -> bytes:
        """The bytes up to and with `end`. Raises `PeerGone` if the peer closes first."""
        await self.wait(lambda: end in self.received or self.peer_closed, f"{end!r}", within_s)
        position = self.received.find(end)
        if position < 0:
            raise PeerGone(f"closed before {end!r}: {bytes(self.received[:300])!r}")
        return self.take(position + len(end))

    async def take_some(self, most: int, within_s: float = DEADLINE_S) -> bytes:
        """What is there, at most `most` bytes; empty only when the peer has closed."""
        await self.wait(lambda: bool(self.received) or self.peer_closed, "bytes", within_s)
        return self.take(most)

    def take(self, count: int) -> bytes:
        """Up to `count` bytes of those that are there."""
        data = bytes(memoryview(self.received)[:count])
        del self.received[:count]
        return data

    async def wait_closed(self, within_s: float = DEADLINE_S) -> float:
        """When the peer closed; waits for it."""
        await self.wait(lambda: self.peer_closed, "the peer to close", within_s)
        assert self.peer_closed_at_s is not None
        return self.peer_closed_at_s

    # -- writing

    async def write(self, *parts: bytes) -> None:
        """Each part in a write of its own, which the peer can read before the next. Raises `PeerGone`."""
        for index, part in enumerate(parts):
            if index:
                await turn()
            if self.transport.is_closing():
                raise PeerGone("closed while being written to")
            self.transport.write(part)
            self.written_bytes += len(part)
            if self.write_paused:
                await self.wait_writable()

    async def wait_writable(self, within_s: float = DEADLINE_S) -> None:
        """Come back when the peer has taken enough of what was written. Raises `PeerGone`."""
        await self.wait(lambda: not self.write_paused or self.transport.is_closing(), "the peer to read", within_s)
        if self.transport.is_closing():
            raise PeerGone("closed while being written to")

    def fin(self) -> None:
        """Close as a program does that has nothing more to say: what was written arrives, then the end."""
        self.transport.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        self.transport.write_eof()

    def reset(self) -> None:
        """Break the connection off with RST, as a crashed host or a firewall does."""
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def _peer_closed(self) -> None:
        if self.peer_closed_at_s is None:
            self.peer_closed_at_s = self.loop.time()
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
