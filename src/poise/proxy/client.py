"""A caller's connection: reads requests one after another, within limits, and has each answered in turn."""

import asyncio
import select
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

import httptools

from poise.core.errors import Refusal
from poise.proxy.arrivals import has_arrived
from poise.proxy.exchange import Exchange
from poise.proxy.gate import check_request
from poise.proxy.local import local_answer
from poise.proxy.request import IncomingRequest
from poise.proxy.response import ResponseWriter
from poise.proxy.retry import STOPPED
from poise.proxy.tunnel import Tunnel
from poise.wire.http import error_body, refusal_headers

if TYPE_CHECKING:
    from poise.proxy.data_path import DataPath
    from poise.proxy.upstream import UpstreamConnection

BAD_REQUEST = Refusal(400, "bad_request", "the request is not valid HTTP/1.1", "caller")
MAX_PIPELINED = 16
"""Requests read ahead of the one being answered; then reading pauses."""
DRAIN_IDLE_S = 1.0
"""How long a connection may be idle while the gateway drains: a request that is on its way is still answered."""
LINGER_S = 2.0
"""After a refusal in mid-request the caller may still be sending: what comes is thrown away for so long, so that it can
read the refusal before its connection is reset."""


class ClientConnection:
    """Parses requests and starts an `Exchange` for one at a time. Times out slow senders and idle connections.

    An `asyncio.Protocol` in all but inheritance: an interpreted base would slow the compiled class down.
    """

    def __init__(self, path: "DataPath") -> None:
        self._path = path
        self._exchange: Exchange | None = None
        self._waiting: deque[IncomingRequest | Refusal] = deque()
        self._request = IncomingRequest()
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpRequestParser(self)
        self._receiving = False
        self._in_body = self._partial = False
        self._received_bytes = 0
        self._joined_parts = 0
        self._receiving_bytes = 0
        """Received of a body that is not complete ..."""
        self._unfinished_bytes = 0
        """... and how much of that is kept, ..."""
        self._buffered_bytes = 0
        """... which is part of all that is kept for this connection."""
        self._since_s = monotonic()
        """When the request being read began, or the connection became idle; when the caller stopped reading."""
        self._tunnel: Tunnel | None = None
        self._early: bytearray | None = None
        """What the caller sent behind a WebSocket handshake that the replica has not answered; None without one."""
        self._lingering = False
        self._answering = False
        self._reading_paused = False
        self.write_paused = False

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        settings = self._path.settings
        self.out = ResponseWriter(
            self.transport, self._path.writes, settings.cors, reveal_replica=settings.reveal_replica
        )
        self._path.clients.add(self)
        self._path.counters.client_connections += 1

    def connection_lost(self, error: Exception | None) -> None:
        self.forget()
        self._waiting.clear()
        if self._exchange is not None:
            self._exchange.cancel()
        self._account(-self._buffered_bytes)

    def forget(self) -> None:
        """The connection has ended, or is a tunnel that has."""
        self._path.clients.discard(self)
        self._path.counters.client_connections -= 1

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            return
        if self._early is not None:
            self._early += data
            if len(self._early) > self._path.settings.limits.head_bytes:
                self.transport.abort()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_message(BAD_REQUEST)
        if self._receiving and not self._lingering:
            self._check_unfinished(len(data))
        if self._waiting:
            self._next()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on after a head that asked for another protocol, where the parser stopped.

        A WebSocket handshake is taken up by its exchange; any other upgrade is declined by answering as usual. The
        parser has skipped the body that such a request may have: it is read by a new one, from a head of our own.
        """
        request = self._request
        while not self._lingering:
            self._parser = httptools.HttpRequestParser(self)
            try:
                if self._receiving:
                    framing = b"content-length: %d" % request.declared_bytes
                    if request.coding:
                        framing = b"transfer-encoding: chunked"
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                if request.wants_websocket:
                    self._early = bytearray(rest)
                elif rest:
                    self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest, request = rest[upgrade.args[0] :], self._request
            except httptools.HttpParserError:
                self._refuse_message(BAD_REQUEST)

    def eof_received(self) -> None:
        """A caller that half-closes is gone, as for the replicas behind."""

    def pause_writing(self) -> None:
        self.write_paused = True
        self._since_s = monotonic()
        if self._exchange is not None:
            self._exchange.follow_pace()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._since_s = monotonic()
        if self._exchange is not None:
            self._exchange.follow_pace()
        else:
            self._next()

    # -- httptools

    def on_url(self, url: bytes) -> None:
        if self._receiving or self._lingering:
            if not self._in_body:
                self._request.target += url  # the target came in several reads
            return
        self._request = request = IncomingRequest()
        request.target = url
        self._receiving = True
        self._in_body = self._partial = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # later ones are trailers, which nobody reads
            self._request.add_header(name, value)

    def on_headers_complete(self) -> None:
        if self._in_body or self._lingering:
            return
        request, parser = self._request, self._parser
        self._in_body = True
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        if not request.keep_alive or request.connection is not None:
            version = parser.get_http_version()
            if version == "1.0":
                request.http10, request.keep_alive = True, False
            elif version != "1.1":
                self._refuse_message(BAD_REQUEST)
                return
        request.head_complete()
        limits = self._path.settings.limits
        if self._received_bytes > limits.head_bytes and request.head_bytes > limits.head_bytes:
            self._refuse_message(self._path.head_too_large)
            return
        request.own_answer = own = local_answer(self._path, request)
        if request.declared_bytes > limits.body_bytes:
            self._refuse_message(self._path.body_too_large)
            return
        if isinstance(own, Refusal) and request.expects_continue:
            self._refuse_message(own)
            return
        self._say_continue()

    def on_message_complete(self) -> None:
        request, parts = self._request, self._parts
        if self._lingering or (request.has_body and self._parser.should_upgrade()):
            return  # the body of a request that asks for an upgrade is still to come: `_decline_upgrade`
        self._receiving = False
        self._received_bytes = 0
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._receiving_bytes = self._joined_parts = 0
        self._account(len(request.body) - self._unfinished_bytes)
        self._unfinished_bytes = 0
        if len(request.body) > self._path.settings.limits.body_bytes:
            self._refuse_message(self._path.body_too_large)
        elif self._path.over_budget:
            self._refuse_message(self._path.buffers_full)
        else:
            self._waiting.append(request)
            if len(self._waiting) == MAX_PIPELINED:
                self.transport.pause_reading()
                self._reading_paused = True

    # -- one request after another

    def _start(self, request: IncomingRequest) -> None:
        if not request.request_id:
            request.request_id = self._path.next_request_id()
        if self._path.draining and not self._waiting:
            request.keep_alive = False
        self.out.prepare(request)
        own = request.own_answer
        if own is None:
            assert request.route is not None
            checked = check_request(self._path, request, request.route)
            if not isinstance(checked, Refusal):
                self._exchange = exchange = Exchange(self._path, self, request, checked)
                exchange.start()
                return
            own = checked
        self.release_body(request)
        if isinstance(own, Refusal):
            self._path.refused_by_gateway(own, request)
            self.out.whole(own.status, error_body(own), refusal_headers(own))
        else:
            self.out.whole(own.status, own.body, own.headers)
        self._request_done(request)

    def exchange_ended(self, request: IncomingRequest) -> None:
        """The exchange has written all it will write."""
        self._exchange = None
        self.release_body(request)
        self._request_done(request)

    def _request_done(self, request: IncomingRequest) -> None:
        self._since_s = monotonic()
        if request.wants_websocket:
            if self._early:
                request.keep_alive = False  # what followed the declined handshake is no HTTP
            self._early = None
        if not request.keep_alive:
            self._path.writes.flush()
            self.transport.close()
        elif self._waiting:
            self._next()
        else:
            self._say_continue()

    def _say_continue(self) -> None:
        """Let a caller that asked for leave send its body, once it is that request's turn."""
        request = self._request
        if request.expects_continue and self._in_body and self._exchange is None and not self._waiting:
            request.expects_continue = False
            if not request.http10:
                self._path.writes.write(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")

    def _next(self) -> None:
        """Answer what waits, until something takes its time. A loop: answers at once must not pile up on the stack."""
        if self._answering:
            return
        self._answering = True
        while self._waiting and self._exchange is None and not self.write_paused and not self.transport.is_closing():
            following = self._waiting.popleft()
            if isinstance(following, Refusal):
                self._write_refusal(following)
                break
            self._start(following)
        self._answering = False
        if self._reading_paused and len(self._waiting) < MAX_PIPELINED and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    def stop(self) -> bool:
        """The gateway ends now: say so to a caller who is owed an answer. Returns whether there was one."""
        self._waiting.clear()
        exchange = self._exchange
        if exchange is not None:
            exchange.stop()
        elif self._receiving:
            self._refuse_message(STOPPED.refusal)
            return True
        self._path.writes.flush()
        self.transport.close()
        return exchange is not None

    def release_body(self, request: IncomingRequest) -> None:
        """The body will not be needed again: no other replica will be tried."""
        self._account(-len(request.body))
        request.body = b""

    def break_off(self) -> None:
        """The answer cannot be completed: end the connection so that the caller can tell."""
        self._path.writes.flush()
        self.transport.abort()

    def tunnel_to(self, connection: "UpstreamConnection", head: bytes, rest: bytes) -> None:
        """From now on pass bytes on as they come, both ways."""
        assert self._exchange is not None
        self._path.writes.flush()
        self.transport.write(head + rest)
        if self._early:
            connection.transport.write(bytes(self._early))
        self._tunnel = Tunnel(self.transport, connection.transport, self._exchange.tunnel_ended)

    # -- limits

    def _check_unfinished(self, received_bytes: int) -> None:
        """Part of a request has come: is it still within its limits?"""
        limits = self._path.settings.limits
        if not self._partial:
            self._partial = True
            if self._exchange is None:
                self._since_s = monotonic()
        if not self._in_body:
            if self._received_bytes > limits.head_bytes:
                self._refuse_message(self._path.head_too_large)
            return
        self._receiving_bytes += received_bytes
        if len(self._parts) > self._joined_parts + 1:
            # Tiny chunks would each be kept as an object many times their size.
            self._parts[self._joined_parts :] = [b"".join(self._parts[self._joined_parts :])]
        self._joined_parts = len(self._parts)
        if isinstance(self._request.own_answer, Refusal):
            self._joined_parts = 0
            self._parts.clear()  # nobody will read it: the rest is let pass so that the connection can go on
        else:
            self._unfinished_bytes += received_bytes
            self._account(received_bytes)
        if max(self._receiving_bytes - limits.head_bytes, self._request.declared_bytes) > limits.body_bytes:
            self._refuse_message(self._path.body_too_large)
        elif self._path.over_budget:
            self._refuse_message(self._path.buffers_full)

    def _account(self, change_bytes: int) -> None:
        self._buffered_bytes += change_bytes
        self._path.counters.buffered_bytes += change_bytes

    def _refuse_message(self, refusal: Refusal) -> None:
        """Refuse the request that is being read, once those before it are answered; the connection ends with that."""
        self._lingering = True
        if not self._receiving:
            self._request = IncomingRequest()  # what is refused is not the last request that was read whole
        self._receiving = False
        self._parts.clear()
        self._account(-self._unfinished_bytes)
        self._receiving_bytes = self._unfinished_bytes = 0
        self._waiting.append(refusal)
        self._next()

    def _write_refusal(self, refusal: Refusal) -> None:
        request = self._request
        request.keep_alive = False
        if not request.request_id:
            request.request_id = self._path.next_request_id()
        self._path.refused_by_gateway(refusal, request)
        self.out.prepare(request)
        self.out.whole(refusal.status, error_body(refusal), refusal_headers(refusal))
        self._since_s = monotonic()
        self._path.writes.flush()
        self.transport.write_eof()

    def tick(self, now_s: float) -> None:
        """Look at the time limits; called about ten times a second."""
        timeouts = self._path.settings.timeouts
        waited_s = now_s - self._since_s
        stalled = self.write_paused or self.transport.is_closing()
        if (stalled and waited_s > timeouts.request_s) or (
            self._reading_paused and has_arrived(self.transport, select.POLLRDHUP)
        ):
            self.transport.abort()
        elif self._tunnel is not None:
            self._tunnel.cut_if_stalled(now_s - timeouts.request_s)
        elif self._exchange is not None:
            self._exchange.tick(now_s)
        elif self._lingering:
            if waited_s > LINGER_S:
                self.transport.abort()
        elif self._receiving:
            if waited_s > timeouts.request_s:
                self._refuse_message(self._path.request_too_slow)
        else:
            limit_s = DRAIN_IDLE_S if self._path.draining else timeouts.keep_alive_s
            if waited_s > limit_s and not has_arrived(self.transport, select.POLLIN):
                self.transport.close()
