"""A connection to a replica, one answer at a time. What an answer means is `poise.proxy.answer`'s business."""

import asyncio
import select
from typing import TYPE_CHECKING, cast

import httptools

from poise.proxy.answer import StreamAnswer
from poise.proxy.retry import KEY_REFUSED, LOST, MALFORMED, STALE, Failure
from poise.wire.chunks import ChunkWatch
from poise.wire.http import AnswerHead

if TYPE_CHECKING:
    from poise.proxy.connections import ReplicaConnections
    from poise.proxy.exchange import Exchange

MAX_HEAD_BYTES = 256 * 1024
"""An answer's head, and interim answers before it, may be so long and the read that ends it."""


class UpstreamConnection:
    """Sends one request at a time and hands the answer's head and body to the exchange that holds it.

    `exchange` is None while the connection is idle in its pool. `reused` says that it has answered before, so that
    silence followed by its end means that the replica had closed it before it saw the request. An `asyncio.Protocol`
    in all but inheritance: an interpreted base would slow the compiled class down.
    """

    __slots__ = (
        "_answer_has_begun", "_answered", "_body_parts", "_chunks", "_done", "_head", "_head_bytes", "_headers",
        "_keep_alive", "_parser", "_parts", "_poll", "_refused", "_unsent", "_until_close", "connections",
        "exchange", "host", "idle_since_s", "on_body", "reused", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, connections: "ReplicaConnections") -> None:
        self.connections = connections
        self.host = ""
        """The address it leads to, or the name that was looked up for it."""
        self.exchange: Exchange | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._answer_has_begun = self._answered = self._done = self._until_close = self._keep_alive = False
        self._unsent = self._refused = False
        self._head: AnswerHead | None = None
        self._chunks: ChunkWatch | None = None
        """Set once the head of a chunked event stream has come, alone."""
        self._body_parts = self._head_bytes = 0
        self._headers.clear()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLHUP)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.transport.abort()  # nobody asked: such a connection cannot be trusted with the next request
            return
        self._answered = True
        if self.connections.key is not None:
            data = self.connections.masked(data)
        chunks, answer = self._chunks, exchange.answer
        alone = chunks is not None and chunks.is_one_chunk(data)
        if not (alone and isinstance(answer, StreamAnswer) and answer.pass_chunk(data)):
            self._parse(exchange, data)

    def _parse(self, exchange: "Exchange", data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            exchange.upgraded(self, AnswerHead(101, self._headers), data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            if not self._done:
                self._fail(MALFORMED)
                return
            self._keep_alive = False  # the answer is whole; what follows it is not one
        if (self._head is not None or not self._answer_has_begun) and not self._begin(exchange, data):
            self._fail(MALFORMED)
            return
        if self._refused and self.connections.key is not None and self._parser.get_status_code() in (401, 403):
            self._fail(KEY_REFUSED)  # the gateway's key for the replica, so it is none of the caller's
            return
        answer = exchange.answer
        parts = self._parts
        if self._done and len(parts) > self._body_parts:
            del parts[self._body_parts :]
            self._keep_alive = False
        if parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            if answer is not None:
                answer.feed(body)
        if self._done and self.exchange is exchange:
            self._complete(exchange)

    def _begin(self, exchange: "Exchange", data: bytes) -> bool:
        """The head has come, or a part of it. False if it is too long, or if nobody could read the body."""
        head, self._head = self._head, None
        if head is None:
            self._head_bytes += len(data)
            return self._head_bytes <= MAX_HEAD_BYTES
        if head.foreign_coding:
            return False
        self._until_close = not head.framed
        if head.events and head.chunked and not self._parts and data.endswith(b"\r\n\r\n"):
            self._chunks = ChunkWatch()
        exchange.answer_begins(head)
        return True

    def eof_received(self) -> None:
        if self._until_close and self.exchange is not None:
            self._complete(self.exchange)

    def connection_lost(self, error: Exception | None) -> None:
        if self.exchange is None:
            self.connections.lost(self)
        else:
            self._fail(LOST if self._answered or not self.reused else STALE)

    def pause_writing(self) -> None:
        """The replica reads slowly. The request is held in memory already: there is nothing to slow down."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    # -- httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._answer_has_begun:  # later ones are trailers
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._done:
            self._keep_alive = False  # a second answer, which nobody asked for
        elif (status := self._parser.get_status_code()) >= 200:
            self._answer_has_begun = True
            self._refused = status >= 400
            self._head = AnswerHead(status, self._headers, self.connections.authority)
        elif status < 100 or (status == 101 and not self._parser.should_upgrade()):
            raise ValueError(status)  # which the parser makes an error of its own

    def on_message_complete(self) -> None:
        if self._done:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers.clear()  # 100 Continue and its like: the answer is still to come
        else:
            self._done = True
            self._body_parts = len(self._parts)
            self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it when the message is over

    # -- the exchange's side

    def send(self, exchange: "Exchange", head: bytes, body: bytes) -> None:
        """Send a request for `exchange`, which holds the connection until its answer is complete or it lets go."""
        self.exchange = exchange
        self._reset()
        if len(body) < 65536:
            self.connections.writes.write(self.transport, head + body)
        else:
            self._unsent = True
            self.connections.writes.flush()
            self.transport.writelines((head, body))

    def let_go(self) -> None:
        """The exchange no longer wants the answer: the replica must see its peer close."""
        self.exchange = None
        self.transport.abort()

    def set_reading(self, wanted: bool) -> None:
        """Read the answer on, or leave it in the network until its caller has caught up."""
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    @property
    def closed_by_replica(self) -> bool:
        """Whether something has arrived on an idle connection: its end, or bytes that nobody asked for."""
        return self.transport.is_closing() or bool(self._poll.poll(0))

    def _fail(self, failure: Failure) -> None:
        exchange, self.exchange = self.exchange, None
        self.transport.abort()
        if exchange is not None:
            exchange.attempt_failed(failure)

    def _complete(self, exchange: "Exchange") -> None:
        self.exchange = None
        if self._unsent and (self.transport.get_write_buffer_size() > 0 or (self._refused and self.connections.tls)):
            # Over TLS the size says little of what is unsent, but whoever refuses need not have read all.
            self.transport.abort()  # answered before it was read: closing would wait for a replica that reads no more
        elif self._until_close or not self._keep_alive:
            self.transport.close()
        else:
            self.reused = True
            if exchange.caller_is_slow:
                self.transport.resume_reading()
            self.connections.give_back(self)
        exchange.answer_ends()
