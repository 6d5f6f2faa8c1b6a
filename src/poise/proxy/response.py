"""Writes answers to one caller: heads with the gateway's own headers, bodies framed as the caller can read them."""

import asyncio
from typing import TYPE_CHECKING

from poise.wire.http import answer

if TYPE_CHECKING:
    from poise.proxy.request import IncomingRequest
    from poise.proxy.settings import Cors


class ResponseWriter:
    """One answer at a time on one connection; `prepare` begins the next.

    `begun` says whether a head has been written: from then on an error can only be told inside the body.
    """

    __slots__ = ("_chunked", "_cors", "_request", "_reveal", "begun", "reason", "replica", "transport")

    def __init__(self, transport: asyncio.Transport, cors: "Cors", *, reveal_replica: bool) -> None:
        self.transport = transport
        self._cors = cors
        self._reveal = reveal_replica
        self._chunked = False
        self.begun = False
        self.replica: str | None = None
        self.reason = ""

    def prepare(self, request: "IncomingRequest") -> None:
        """The next answer is one to `request`."""
        self._request = request
        self._chunked = self.begun = False
        self.replica = None
        self.reason = ""

    def stream_head(self, head: list[bytes]) -> None:
        """Begin a streamed answer, unless the wait for it has begun it already."""
        if self.begun:
            return
        self._finish_head(head, None)
        self.transport.write(b"".join(head))

    def answer(self, head: list[bytes], body: bytes, *, length: int | None) -> None:
        """Begin a plain answer. `length` is that of the whole body, -1 for an answer without one, None if unknown."""
        if self.begun:
            # The caller was told to expect a stream: a plain answer can only be passed on inside it.
            self.body(b"data: %b\n\n" % body)
            return
        self._finish_head(head, length)
        if body and self._chunked:
            head += (b"%x\r\n" % len(body), body, b"\r\n")
        else:
            head.append(body)
        self.transport.write(b"".join(head))

    def body(self, data: bytes) -> None:
        """Pass body bytes on, in one chunk."""
        if self._chunked:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self.transport.write(data)

    def end(self) -> None:
        """The body is complete."""
        if self._chunked:
            self.transport.write(b"0\r\n\r\n")

    def whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """A whole JSON answer of the gateway's own."""
        self.begun = True
        request = self._request
        headers = [(b"x-request-id", request.request_id), *headers, *cors_headers(self._cors, request.origin)]
        self.transport.write(answer(status, body, headers, close=not request.keep_alive))

    def _finish_head(self, head: list[bytes], length: int | None) -> None:
        self.begun = True
        request = self._request
        head += (b"x-request-id: ", request.request_id)
        if self._reveal and self.replica is not None:
            head += (b"\r\nx-poise-replica: ", self.replica.encode(), b"\r\nx-poise-reason: ", self.reason.encode())
        if request.origin is not None:
            head += [b"\r\n%b: %b" % header for header in cors_headers(self._cors, request.origin)]
        if length is None and not request.http10:
            self._chunked = True
            head.append(b"\r\ntransfer-encoding: chunked")
        elif length is not None and length >= 0:
            head.append(b"\r\ncontent-length: %d" % length)
        head.append(b"\r\n\r\n" if request.keep_alive else b"\r\nconnection: close\r\n\r\n")


def cors_headers(cors: "Cors", origin: bytes | None) -> list[tuple[bytes, bytes]]:
    """What a browser at `origin` has to read in an answer, empty if it may not."""
    if origin is None or not cors.allow_origins:
        return []
    if "*" in cors.allow_origins:
        return [(b"access-control-allow-origin", b"*")]
    if origin.decode("latin-1") in cors.allow_origins:
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
    return []
