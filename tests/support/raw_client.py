"""A caller that writes any bytes in any cuts, and reads answers with the time of each piece."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from support.certificates import client_tls
from support.http_reading import BodyReader, Framing, Head, read_head
from support.transcript import Transcript, shown
from support.wire import DEADLINE_S, PeerGone, Wire


class Answer:
    """One answer, read as far as the test has asked. `pieces` is (time, bytes) of the decoded body, as it came."""

    def __init__(self, wire: Wire, head: Head, interim: list[Head], reader: BodyReader) -> None:
        self._wire = wire
        self._reader = reader
        self._event_start = 0
        self.head = head
        self.interim = interim
        self.body = bytearray()
        self.pieces: list[tuple[float, bytes]] = []
        self.cut_short = False

    @property
    def status(self) -> int:
        """The status code."""
        return int(self.head.first_line.split(b" ", 2)[1])

    @property
    def complete(self) -> bool:
        """Whether the body's end has been seen."""
        return self._reader.complete

    @property
    def chunk_sizes(self) -> list[int]:
        """Sizes of the chunks so far, if chunked."""
        return self._reader.chunk_sizes

    def value(self, name: str) -> bytes | None:
        """See `Head.value`."""
        return self.head.value(name)

    async def piece(self, within_s: float = DEADLINE_S) -> bytes:
        """The next bytes of the body; empty at its end, or where it is cut short (then `cut_short` is set)."""
        if self.cut_short:
            return b""
        try:
            data = await self._reader.piece(within_s)
        except PeerGone:
            self.cut_short = True
            return b""
        if data:
            self.body += data
            self.pieces.append((self._wire.loop.time(), data))
        return data

    async def event(self, within_s: float = DEADLINE_S) -> bytes:
        """The next server-sent event or comment with the empty line that ends it; what is left at the body's end."""
        while (end := self.body.find(b"\n\n", self._event_start)) < 0:
            if not await self.piece(within_s):
                end = len(self.body)
                break
        event = bytes(self.body[self._event_start : end + 2])
        self._event_start += len(event)
        return event

    async def read_until(self, text: bytes, within_s: float = DEADLINE_S) -> None:
        """Read on until `text` is in the body. Fails if the body ends before."""
        while text not in self.body:
            more = await self.piece(within_s)
            assert more, f"the body ended without {text!r}: {shown(self.body)}"

    async def finish(self, within_s: float = DEADLINE_S) -> "Answer":
        """Read to the end of the body; `within_s` bounds each silence, not the whole."""
        while await self.piece(within_s):
            pass
        return self


class RawClient:
    """One connection of a caller. `method` of what was sent last decides whether an answer can have a body."""

    def __init__(self, wire: Wire, transcript: Transcript | None = None, name: str = "caller") -> None:
        self.wire = wire
        self.name = name
        self._transcript = transcript
        self._methods: list[bytes] = []

    async def send(self, *parts: bytes, methods: tuple[bytes, ...] = ()) -> None:
        """Write the parts, each in a write of its own. `methods` of the requests in them, if not just one's."""
        whole = b"".join(parts)
        self._methods += methods or (whole[:12].split(b" ", 1)[0],)
        if self._transcript is not None:
            self._transcript.note(self.name, shown(whole.split(b" HTTP/", 1)[0]))
        await self.wire.write(*parts)

    async def send_more(self, *parts: bytes) -> None:
        """Write parts that begin no new request."""
        await self.wire.write(*parts)

    async def head(self, within_s: float = DEADLINE_S) -> Answer:
        """The next final answer's head; the body is left to be read. Raises `PeerGone` if the gateway hangs up."""
        interim: list[Head] = []
        while True:
            head = await read_head(self.wire, within_s)
            status = int(head.first_line.split(b" ", 2)[1])
            if status >= 200 or status == 101:
                break
            interim.append(head)
        assert head.first_line.startswith(b"HTTP/1.1 "), head.first_line
        method = self._methods.pop(0) if self._methods else b""
        return Answer(self.wire, head, interim, self._body_reader(head, status, method))

    async def answer(self, within_s: float = DEADLINE_S) -> Answer:
        """The next answer, read to its end."""
        answer = await self.head(within_s)
        await answer.finish(within_s)
        if self._transcript is not None:
            cut = " (cut short)" if answer.cut_short else ""
            self._transcript.note(f"{self.name} got", f"{answer.status} {shown(answer.body)}{cut}")
        return answer

    async def ask(self, *parts: bytes, within_s: float = DEADLINE_S) -> Answer:
        """Send one request and read its answer."""
        await self.send(*parts)
        return await self.answer(within_s)

    def stop_reading(self) -> None:
        """Become a reader so slow that it reads nothing."""
        self.wire.transport.pause_reading()

    def read_again(self) -> None:
        """Take up reading."""
        self.wire.transport.resume_reading()

    def close(self) -> None:
        """Hang up."""
        if self._transcript is not None and not self.wire.transport.is_closing():
            self._transcript.note(self.name, "hangs up")
        self.wire.fin()

    def reset(self) -> None:
        """Hang up with RST."""
        self.wire.reset()

    def _body_reader(self, head: Head, status: int, method: bytes) -> BodyReader:
        framing = head.framing
        if method == b"HEAD" or status in (101, 204, 304):
            return BodyReader(self.wire, Framing.NONE)
        if framing is Framing.LENGTH:
            return BodyReader(self.wire, Framing.LENGTH, int(head.value("content-length") or b"0"))
        return BodyReader(self.wire, framing or Framing.CLOSE)


async def open_client(
    where: int | Path, *, receive_buffer_bytes: int | None = None, name: str = "caller",
    transcript: Transcript | None = None,
) -> RawClient:  # fmt: skip
    """Connect to a port or a Unix socket. A small `receive_buffer_bytes` lets a slow reader be felt soon."""
    by_path = isinstance(where, Path)
    sock = socket.socket(socket.AF_UNIX if by_path else socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(sock, str(where) if by_path else ("127.0.0.1", where))
        if by_path:
            _, wire = await loop.create_unix_connection(Wire, sock=sock)
        else:
            tls = client_tls()
            _, wire = await loop.create_connection(
                Wire, sock=sock, ssl=tls, server_hostname="127.0.0.1" if tls else None
            )
    except BaseException:
        sock.close()
        raise
    return RawClient(wire, transcript, name)


@asynccontextmanager
async def client(port: int, *, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """`open_client` that hangs up at the end of the block."""
    opened = await open_client(port, receive_buffer_bytes=receive_buffer_bytes)
    try:
        yield opened
    finally:
        opened.wire.transport.abort()
