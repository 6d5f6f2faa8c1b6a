"""A replica on loopback whose answer to each request is a script, and which writes down everything it sees."""

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from support.certificates import server_tls
from support.http_reading import BodyReader, Framing, Head, read_head
from support.transcript import Transcript
from support.wire import DEADLINE_S, PeerGone, Wire, until

Script = Callable[["Exchange"], Awaitable[None]]


@dataclass
class Exchange:
    """One request as the replica saw it, and the means to answer it."""

    replica: "ScriptedReplica"
    wire: Wire
    number: int
    """1 for the replica's first request."""
    connection: int
    """1 for the replica's first connection."""
    head: Head
    arrived_at_s: float
    active: int
    """Requests at the replica when this one arrived, itself included."""
    body: bytes = b""
    body_sha256: str = ""
    body_bytes: int = 0
    complete: bool = False
    chunk_sizes: list[int] = field(default_factory=list)

    @property
    def target(self) -> bytes:
        """The request target as it came."""
        return self.head.first_line.split(b" ")[1]

    @property
    def peer_closed_at_s(self) -> float | None:
        """When the gateway closed the connection, None if it has not."""
        return self.wire.peer_closed_at_s

    async def write(self, *parts: bytes) -> None:
        """Each part in a write of its own. Raises `PeerGone`, which a script need not catch."""
        await self.wire.write(*parts)

    def fin(self) -> None:
        """Close as a server does that shuts down."""
        self.replica.note("closes")
        self.wire.fin()

    def reset(self) -> None:
        """Break off with RST, as a crashed server does."""
        self.replica.note("resets")
        self.wire.reset()

    async def hang(self) -> None:
        """Say nothing until the gateway gives up."""
        await self.wire.wait_closed(within_s=3600)
        self.replica.note("left alone")

    async def read_body(self) -> None:
        """Take the request's body. Done before the script is started, unless the replica `answers_early`."""
        length = int(self.head.value("content-length") or b"0")
        framing = self.head.framing or Framing.NONE
        reader = BodyReader(self.wire, framing, length)
        digest, kept = hashlib.sha256(), bytearray()
        while piece := await reader.piece(within_s=3600):
            digest.update(piece)
            self.body_bytes += len(piece)
            if self.replica.keeps_bodies:
                kept += piece
        self.body, self.body_sha256 = bytes(kept), digest.hexdigest()
        self.chunk_sizes = reader.chunk_sizes
        self.complete = True


class ScriptedReplica:
    """A server on a port of the kernel's choice. Use as `async with`; leaving it re-raises what went wrong in a script.

    `script` answers each request. With `idle_s`, a connection that waits that long for another request is closed in the
    way of `idle_end` (`Wire.fin` or `Wire.reset`). `answers_early` starts the script at the end of the head.
    `keeps_bodies=False` keeps only length and hash. `send_buffer_bytes` bounds what the kernel takes off its hands.
    """

    def __init__(
        self, script: Script, name: str = "r1", *, idle_s: float | None = None,
        idle_end: Callable[[Wire], None] = Wire.fin, answers_early: bool = False, keeps_bodies: bool = True,
        send_buffer_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.script = script
        self.name = name
        self.idle_s = idle_s
        self.idle_end = idle_end
        self.answers_early = answers_early
        self.keeps_bodies = keeps_bodies
        self.send_buffer_bytes = send_buffer_bytes
        self.transcript: Transcript | None = None
        self.requests: list[Exchange] = []
        self.connections = 0
        self.active = 0
        self.most_active = 0
        self.garbage: list[bytes] = []
        """What came on a connection that is no whole request."""
        self._errors: list[Exception] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wires: set[Wire] = set()

    async def __aenter__(self) -> Self:
        self.port = 0
        await self.come_back()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def come_back(self) -> None:
        """Listen again after `die`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Wire(self._connected), "127.0.0.1", self.port, backlog=2048, ssl=server_tls()
        )

    async def die(self) -> None:
        """End as a process does that is killed: no connection is left, and none is taken."""
        self._server.close()
        for wire in self._wires:
            wire.transport.abort()
        await self._server.wait_closed()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for wire in self._wires:
            wire.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        if kind is None and self._errors:
            raise self._errors[0]

    @property
    def wires(self) -> frozenset[Wire]:
        """The connections that are open."""
        return frozenset(self._wires)

    async def request(self, number: int = 1, within_s: float = DEADLINE_S) -> Exchange:
        """The `number`th request; waits until its head, and body unless `answers_early`, is there."""

        def here() -> bool:
            return len(self.requests) >= number and (self.answers_early or self.requests[number - 1].complete)

        await until(here, f"request {number} at {self.name}", within_s)
        return self.requests[number - 1]

    def note(self, what: str) -> None:
        """Add a line to the transcript, if there is one."""
        if self.transcript is not None:
            self.transcript.note(self.name, what)

    def _connected(self, wire: Wire) -> None:
        self.connections += 1
        self._wires.add(wire)
        if self.send_buffer_bytes is not None:
            sock = wire.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        task = wire.loop.create_task(self._serve(wire, self.connections), name=f"kit {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, wire: Wire, connection: int) -> None:
        try:
            idle_s = None
            while await self._request_begins(wire, idle_s):
                await self._answer(wire, connection)
                idle_s = self.idle_s
        except PeerGone:
            self.garbage += [bytes(wire.received)] if wire.received else []
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails with it
            self._errors.append(error)
        finally:
            self._wires.discard(wire)
            wire.fin()

    async def _request_begins(self, wire: Wire, idle_s: float | None) -> bool:
        """Wait for a request's first byte; False if the connection ended instead."""
        try:
            async with asyncio.timeout(idle_s):
                await wire.wait(
                    lambda: bool(wire.received) or wire.transport.is_closing() or wire.peer_closed,
                    "a request",
                    within_s=3600,
                )
        except TimeoutError:
            self.idle_end(wire)
        return bool(wire.received) and not wire.transport.is_closing()

    async def _answer(self, wire: Wire, connection: int) -> None:
        head = await read_head(wire, within_s=3600)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        exchange = Exchange(self, wire, len(self.requests) + 1, connection, head, wire.loop.time(), self.active)
        self.requests.append(exchange)
        self.note(f"gets {head.first_line.rsplit(b' ', 1)[0].decode('latin-1')}")
        try:
            if not self.answers_early:
                await exchange.read_body()
            await self.script(exchange)
        finally:
            self.active -= 1


def closed_port() -> socket.socket:
    """A bound socket that nobody listens on: connections to its port are refused for as long as it is kept."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    return sock
