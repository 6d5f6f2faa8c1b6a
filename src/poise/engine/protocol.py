"""The HTTP/1.1 side of a simulated engine: one connection, as uvicorn with httptools behaves."""

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Protocol, cast

import httptools

from poise.core.clock import monotonic_s
from poise.engine.exchange import Exchange
from poise.engine.settings import KEEP_ALIVE_S

HEAD = b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: uvicorn\r\n%b"
STREAM_HEADERS = b"content-type: text/event-stream; charset=utf-8\r\nvary: Origin\r\ntransfer-encoding: chunked\r\n"
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Request:
    """One request as it was read."""

    __slots__ = ("body", "headers", "keep_alive", "method", "path", "started_s", "status", "target")

    def __init__(self) -> None:
        self.method = ""
        self.target = bytearray()
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        self.body = bytearray()
        self.keep_alive = True
        self.started_s = 0.0
        self.status = 200


class Application(Protocol):
    """What answers the requests of all connections of one server."""

    connections: set["EngineProtocol"]

    def handle(self, request: Request, connection: "EngineProtocol") -> None:
        """Answer `request` on `connection`, now or later."""

    def finished(self, request: Request, duration_s: float) -> None:
        """Count an answered request; its `status` is set."""

    def date(self) -> bytes:
        """The value of the `date` header."""


class EngineProtocol(asyncio.Protocol):
    """Reads requests, hands them on one at a time, writes answers. A caller who closes, or half-closes, has gone."""

    def __init__(self, application: Application) -> None:
        self.exchange: Exchange | None = None
        """The generating request in progress; whoever sets it has it aborted when the caller goes."""
        self._application = application
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._reading = Request()
        self._current: Request | None = None
        self._queue: deque[Request] = deque()
        self._idle_since_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._application.connections.add(self)
        self._idle_since_s = monotonic_s()
        self._idle_timer = self._loop.call_later(KEEP_ALIVE_S, self._close_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._application.connections.discard(self)
        self._queue.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self.exchange is not None:
            self.exchange.abort()
            self.exchange = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)  # asked for in vain: the request was answered as it is
        except httptools.HttpParserError:
            self._refuse(b"Invalid HTTP request received.")

    # -- httptools --------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._reading.target += url  # comes in pieces, as the network cut it

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reading.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reading.path = bytes(self._reading.target).partition(b"?")[0].decode("latin-1")
        self._reading.method = self._parser.get_method().decode("ascii")
        self._reading.keep_alive = self._parser.should_keep_alive()
        if self._reading.headers.get(b"expect", b"").lower() == b"100-continue":
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._reading.body += body

    def on_message_complete(self) -> None:
        request, self._reading = self._reading, Request()
        if self._current is None:
            self._start(request)
        else:
            self._queue.append(request)

    # -- answers ----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Write bytes that are framed already; nothing happens if the caller has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def send_chunk(self, data: bytes) -> None:
        """Write `data`, which is not empty, as one HTTP chunk."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def answer(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"") -> None:
        """Send a whole answer."""
        content = b"content-type: %b\r\n" % content_type if body else b""
        head = b"content-length: %d\r\n%bvary: Origin\r\n%b" % (len(body), content, extra)
        with_body = body if self._current is None or self._current.method != "HEAD" else b""
        self.send(self._head(status, head) + with_body)
        self._finish()

    def begin_stream(self) -> None:
        """Send the head of a stream of events."""
        self.send(self._head(200, STREAM_HEADERS))

    def end_stream(self) -> None:
        """Send the last, empty chunk."""
        self.send(b"0\r\n\r\n")
        self._finish()

    def close(self) -> None:
        """Drop the connection, whatever it is doing."""
        if self._transport is not None:
            self._transport.abort()

    def _head(self, status: int, headers: bytes) -> bytes:
        close = b""
        if self._current is not None:
            self._current.status = status
            close = b"" if self._current.keep_alive else b"connection: close\r\n"
        return HEAD % (status, _REASONS[status], self._application.date(), headers) + close + b"\r\n"

    def _start(self, request: Request) -> None:
        self._current = request
        request.started_s = monotonic_s()
        self._application.handle(request, self)

    def _finish(self) -> None:
        request, self._current, self.exchange = self._current, None, None
        self._idle_since_s = monotonic_s()
        if request is not None:
            self._application.finished(request, self._idle_since_s - request.started_s)
        if self._transport is None:
            return
        if request is None or not request.keep_alive:
            self._transport.close()
        elif self._queue:
            self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        if self._current is None and self._queue:
            self._start(self._queue.popleft())

    def _refuse(self, message: bytes) -> None:
        if self._current is None and self._transport is not None:
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n"
            head = HEAD % (400, b"Bad Request", self._application.date(), head % len(message))
            self.send(head + b"\r\n" + message)
        if self._transport is not None:
            self._transport.close()

    def _close_if_idle(self) -> None:
        left_s = self._idle_since_s + KEEP_ALIVE_S - monotonic_s()
        if self._current is not None:
            left_s = KEEP_ALIVE_S  # busy: `_finish` starts the idle time anew
        elif left_s <= 0.001 and self._transport is not None:
            self._transport.close()
            return
        self._idle_timer = self._loop.call_later(max(left_s, 0.001), self._close_if_idle)
