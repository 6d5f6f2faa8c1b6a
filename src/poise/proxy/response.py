"""Writes answers to one caller: heads with the gateway's own headers, bodies framed as the caller can read them."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from poise.core.errors import Refusal
from poise.proxy.write_batch import WriteBatch
from poise.wire.http import BODILESS, AnswerHead, error_body, own_head, refusal_headers, status_line, without
from poise.wire.stream_end import StreamEnd

if TYPE_CHECKING:
    from poise.admission.idempotency import KeptAnswer
    from poise.proxy.request import IncomingRequest
    from poise.proxy.settings import Cors


STREAM_HEADERS = b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
"""So that no proxy in front of the gateway collects or recodes events."""
COPIED_BYTES = 64 * 1024
"""A kept answer of this size is written as it is, one object for all who have not taken it yet."""
REPLAYED = b"idempotent-replayed: true\r\n"


class ResponseWriter:
    """One answer at a time on one connection; `prepare` begins the next.

    `begun` says whether a head has been written: from then on an error can only be told inside the body. `chunked` says
    how that body is framed.
    """

    __slots__ = ("_batch", "_cors", "_request", "_reveal", "begun", "chunked", "reason", "replica", "transport")

    def __init__(self, transport: asyncio.Transport, batch: WriteBatch, cors: "Cors", *, reveal_replica: bool) -> None:
        self.transport = transport
        self._batch = batch
        self._cors = cors
        self._reveal = reveal_replica
        self.chunked = False
        self.begun = False
        self.replica: str | None = None
        self.reason = ""

    def prepare(self, request: "IncomingRequest") -> None:
        """The next answer is one to `request`."""
        self._request = request
        self.chunked = self.begun = False
        self.replica = None
        self.reason = ""

    def stream_head(self, status: int, lines: list[bytes]) -> None:
        """Begin a streamed answer, unless the wait for it has begun it already. `lines`: headers to pass on, flat."""
        if not self.begun:
            self._batch.write(self.transport, b"".join(self._head(status, lines, None, STREAM_HEADERS)))

    def answer(self, head: AnswerHead, body: bytes, *, length: int | None) -> None:
        """Begin a plain answer. `length` is that of the whole body, -1 for an answer without one, None if unknown."""
        if self.begun:
            # The caller was told to expect a stream: a plain answer can only be passed on inside it.
            self.event(body, failed=head.status >= 400)
            self.end()
            return
        parts = self._head(head.status, head.lines, length, b"")
        if body and self.chunked:
            parts += (b"%x\r\n" % len(body), body, b"\r\n")
        else:
            parts.append(body)
        self._batch.write(self.transport, b"".join(parts))

    def body(self, data: bytes) -> None:
        """Pass body bytes on, in one chunk."""
        if self.chunked:
            if data:  # an empty chunk would be the last one
                self._batch.write(self.transport, b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._batch.write(self.transport, data)

    def framed(self, chunk: bytes) -> None:
        """Pass body bytes on that are one chunk already. Only where `chunked`."""
        self._batch.write(self.transport, chunk)

    def event(self, data: bytes, *, failed: bool) -> None:
        """`data` as one event inside a stream that has begun."""
        kind = b"event: error\n" if failed and self._typed_events else b""
        lines = b"\n".join(b"data: " + line for line in data.splitlines())
        self.body(b"%b%b\n\n" % (kind, lines))

    def error_event(self, refusal: Refusal) -> None:
        """Say inside a stream that has begun that it has failed."""
        self.event(error_body(refusal), failed=True)

    def end(self) -> None:
        """The body is complete."""
        if self.chunked:
            self._batch.write(self.transport, b"0\r\n\r\n")

    def whole(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """A whole JSON answer of the gateway's own; without its body if the request was HEAD."""
        self.begun = True
        request = self._request
        headers = [(b"x-request-id", request.request_id), *headers, *cors_headers(self._cors, request.origin)]
        head = own_head(status, len(body), headers, close=not request.keep_alive)
        self._batch.write(self.transport, head if request.method == b"HEAD" else head + body)

    def again(self, answer: "KeptAnswer", *, replayed: bool) -> None:
        """A whole answer that was taken down; `replayed` if it was so for another request."""
        self.replica, self.reason = answer.replica, answer.reason
        length = -1 if answer.status in BODILESS else len(answer.body)
        head = self._head(answer.status, list(answer.lines), length, REPLAYED if replayed else b"")
        if len(answer.body) < COPIED_BYTES:
            head.append(answer.body)
            self._batch.write(self.transport, b"".join(head))
        else:
            self._batch.write(self.transport, b"".join(head))
            self._batch.write(self.transport, answer.body)

    def refusal(self, refusal: Refusal) -> None:
        """A whole answer that says no."""
        self.whole(refusal.status, error_body(refusal), refusal_headers(refusal))

    @property
    def _typed_events(self) -> bool:
        route = self._request.route
        return route is not None and route.stream_end is not StreamEnd.DONE

    def _head(self, status: int, lines: list[bytes], length: int | None, extra: bytes) -> list[bytes]:
        """The parts of a head, `lines` being what the replica's own left."""
        self.begun = True
        request = self._request
        if self._cors.allow_origins:
            lines = without(lines, (b"access-control-allow-origin",))
        head = [status_line(status), *lines, extra, b"x-request-id: ", request.request_id]
        if self._reveal and self.replica is not None:
            head += (b"\r\nx-poise-replica: ", self.replica.encode(), b"\r\nx-poise-reason: ", self.reason.encode())
        if self._cors.allow_origins:
            head += [b"\r\n%b: %b" % header for header in cors_headers(self._cors, request.origin)]
        if length is None and not request.http10:
            self.chunked = True
            head.append(b"\r\ntransfer-encoding: chunked")
        elif length is not None and length >= 0:
            head.append(b"\r\ncontent-length: %d" % length)
        head.append(b"\r\n\r\n" if request.keep_alive else b"\r\nconnection: close\r\n\r\n")
        return head


def cors_headers(cors: "Cors", origin: bytes | None) -> list[tuple[bytes, bytes]]:
    """What the answer to a request from `origin` says to browsers, and to caches that serve several origins."""
    if not cors.allow_origins:
        return []
    if "*" in cors.allow_origins:
        return [(b"access-control-allow-origin", b"*")] if origin is not None else []
    varies = [(b"vary", b"origin")]
    if allows_origin(cors, origin):
        assert origin is not None
        return [(b"access-control-allow-origin", origin), *varies]
    return varies


def allows_origin(cors: "Cors", origin: bytes | None) -> bool:
    """Whether a browser at `origin` may call."""
    return origin is not None and ("*" in cors.allow_origins or origin.decode("latin-1") in cors.allow_origins)
