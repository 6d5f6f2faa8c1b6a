"""A small HTTP/1.1 client that gets one server's pages over one connection, each with a deadline and a size bound."""

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from typing import cast

import httptools

from poise.core.dial import Dialer
from poise.core.errors import PoiseError, is_exhausted, nothing_listens
from poise.core.replica import ReplicaAddress

LARGEST_ANSWER_BYTES = 4 * 1024 * 1024
"""Some sixty times a real metrics page."""
KEEP_IDLE_S = 4.0
"""vLLM closes a connection that was idle for 5 s; one that is used at that moment is lost."""


class GetError(PoiseError):
    """A page could not be got; the message says why and holds no address.

    `status` is that of an answer which was not a 200. `refused` says that nothing listens there,
    `exhausted` that this process can open no more connections.
    """

    def __init__(
        self, message: str, *, status: int | None = None, refused: bool = False, exhausted: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.refused = refused
        self.exhausted = exhausted


class _Stale(GetError):
    """A kept connection ended before any of the answer came: the server may have closed it while it was idle."""


class PageGetter:
    """Gets pages from the server at `address`, one at a time. It belongs to one task of one event loop."""

    def __init__(self, address: ReplicaAddress) -> None:
        key = "" if address.api_key is None else f"authorization: Bearer {address.api_key.reveal()}\r\n"
        self._base = address.base
        self._head = f" HTTP/1.1\r\nhost: {address.authority}\r\naccept: */*\r\nuser-agent: poise\r\n{key}\r\n"
        self._dialer = Dialer(address)
        self._connection: _Connection | None = None
        self._host = ""

    async def get(self, target: str, timeout_s: float, hosts: Sequence[str] = ()) -> bytes:
        """The body of the answer to `GET target`. Raises `GetError` for everything but a whole 200 in time.

        `hosts` are the addresses of the server; if there are none, its name is looked up for a new connection.
        """
        if hosts and self._host not in hosts:
            self.close()
        done = False
        try:
            async with asyncio.timeout(timeout_s):
                body = await self._get(target, hosts)
            done = True
            return body
        except TimeoutError:
            raise GetError(f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise GetError(
                f"no connection: {_reason(error)}", refused=nothing_listens(error), exhausted=is_exhausted(error)
            ) from None
        finally:
            if not done:
                self.close()

    def close(self) -> None:
        """Drop the connection; the next `get` makes a new one."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None

    async def _get(self, target: str, hosts: Sequence[str]) -> bytes:
        request = f"GET {self._base}{target}{self._head}".encode()
        if self._connection is not None and self._connection.reusable():
            try:
                return await self._connection.get(request)
            except _Stale:
                pass
        self.close()
        self._connection, self._host = await self._dialer.open(_Connection, hosts)
        return await self._connection.get(request)


class _Connection(asyncio.Protocol):
    """One connection. `_answer` is the answer that is waited for, None while the connection is idle."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] | None = None
        self._idle_since_s = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self.on_message_begin()

    def reusable(self) -> bool:
        """Whether the server can be expected to still hold this connection."""
        return not self.transport.is_closing() and self._loop.time() - self._idle_since_s < KEEP_IDLE_S

    async def get(self, request: bytes) -> bytes:
        """Send `request`; the body of its answer. Raises `GetError`."""
        self._began = False
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._answer = answer
        self.transport.write(request)
        try:
            return await answer
        finally:
            self._answer = None
            self._idle_since_s = self._loop.time()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.transport.abort()  # nobody asked
            return
        self._began = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(GetError(f"the answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._head_complete and self._ends_with_connection and error is None:
            self._finish()
        elif self._began:
            self._fail(GetError("the connection ended before the answer did"))
        else:
            self._fail(_Stale("the connection ended without an answer"))

    # -- httptools

    def on_message_begin(self) -> None:
        """A new answer begins."""
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._encoding = b""
        self._head_complete = False
        self._ends_with_connection = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header of the answer."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif name == b"content-encoding":
            self._encoding = value

    def on_headers_complete(self) -> None:
        """The head of the answer is complete."""
        status = self._parser.get_status_code()
        if status < 200:
            return
        self._head_complete = True
        if status != 200:
            self._fail(GetError(f"the answer is {status}", status=status))
        elif self._encoding not in (b"", b"identity"):
            self._fail(GetError(f"the answer is encoded, which was not asked for: {self._encoding.decode('latin-1')}"))

    def on_body(self, chunk: bytes) -> None:
        """A part of the answer's body."""
        self._chunks.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > LARGEST_ANSWER_BYTES:
            self._fail(GetError(f"the answer is larger than {LARGEST_ANSWER_BYTES} bytes"))

    def on_message_complete(self) -> None:
        """The answer is complete, or it was one of those that come before the real one (1xx)."""
        if self._head_complete:
            self._finish()
            if not self._parser.should_keep_alive():
                self.transport.close()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"".join(self._chunks))

    def _fail(self, error: GetError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.transport.abort()


def _reason(error: OSError) -> str:
    """What went wrong, without the address that asyncio puts into the text."""
    if isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or type(error).__name__
    return os.strerror(error.errno) if error.errno else "no address of the host answers"
