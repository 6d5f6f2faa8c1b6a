"""A caller's connection: has its requests answered one after another."""

import asyncio
import select
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

from poise.core.errors import Refusal
from poise.proxy.arrivals import has_arrived
from poise.proxy.caller import Caller
from poise.proxy.exchange import Exchange
from poise.proxy.gate import check_request
from poise.proxy.keyed import Member
from poise.proxy.request import IncomingRequest
from poise.proxy.request_reader import RequestReader
from poise.proxy.response import ResponseWriter
from poise.proxy.retry import STOPPED
from poise.proxy.tunnel import Tunnel

if TYPE_CHECKING:
    from poise.proxy.data_path import DataPath
    from poise.proxy.upstream import UpstreamConnection

MAX_PIPELINED = 16
"""Requests read ahead of the one being answered; then reading pauses."""
DRAIN_IDLE_S = 1.0
"""How long a connection may be idle while the gateway drains: a request that is on its way is still answered."""
LINGER_S = 2.0
"""After a refusal in mid-request the caller may still be sending: what comes is thrown away for so long, so that it can
read the refusal before its connection is reset."""


class ClientConnection(Caller):
    """Starts an `Exchange` for one request at a time. Times out slow senders and idle connections.

    An `asyncio.Protocol` in all but inheritance: an interpreted base would slow the compiled class down.
    """

    def __init__(self, path: "DataPath") -> None:
        self._path = path
        self._exchange: Exchange | Member | None = None
        self._waiting: deque[IncomingRequest | Refusal] = deque()
        self._reader = RequestReader(path, self)
        self._buffered_bytes = 0
        """Bytes of bodies that are kept for this connection."""
        self._since_s = monotonic()
        """When the request being read began, or the connection became idle; when the caller stopped reading."""
        self._tunnel: Tunnel | None = None
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
        self.account(-self._buffered_bytes)

    def forget(self) -> None:
        """The connection has ended, or is a tunnel that has."""
        self._path.clients.discard(self)
        self._path.counters.client_connections -= 1

    def data_received(self, data: bytes) -> None:
        if not self._reader.stopped:
            self._reader.feed(data)
            if self._waiting:
                self._next()

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

    # -- the reader's side

    def arrived(self, request: IncomingRequest) -> None:
        """A request has been read whole."""
        self._waiting.append(request)
        if len(self._waiting) == MAX_PIPELINED:
            self.transport.pause_reading()
            self._reading_paused = True

    def refused(self, refusal: Refusal) -> None:
        """A request is not read to its end: it is refused once those before it are answered."""
        self._waiting.append(refusal)
        self._next()

    def reading_began(self) -> None:
        """A request has come in part: its time runs, unless another is being answered."""
        if self._exchange is None:
            self._since_s = monotonic()

    def account(self, change_bytes: int) -> None:
        """More or less of bodies is kept."""
        self._buffered_bytes += change_bytes
        self._path.counters.buffered_bytes += change_bytes

    def say_continue(self) -> None:
        """Let a caller that asked for leave send its body, once it is that request's turn."""
        request = self._reader.request
        if request.expects_continue and self._reader.in_body and self._exchange is None and not self._waiting:
            request.expects_continue = False
            if not request.http10:
                self._path.writes.write(self.transport, b"HTTP/1.1 100 Continue\r\n\r\n")

    # -- one request after another

    def _start(self, request: IncomingRequest) -> None:
        if not request.request_id:
            request.request_id = self._path.next_request_id()
        if self._path.draining and not self._waiting:
            request.keep_alive = False
        self.out.prepare(request)
        own = request.own_answer
        if own is None:
            begun = self._begin(request)
            if not isinstance(begun, Refusal):
                self._exchange = begun
                begun.start()
                return
            own = begun
        self.release_body(request)
        if isinstance(own, Refusal):
            self._path.refused_by_gateway(own, request)
            self.out.refusal(own)
        else:
            self.out.whole(own.status, own.body, own.headers)
        self._request_done(request)

    def _begin(self, request: IncomingRequest) -> Exchange | Member | Refusal:
        path = self._path
        if request.idempotency_key is not None and request.method == b"POST":
            return path.keyed.begin(self, request)
        checked = check_request(path, self, request)
        return checked if isinstance(checked, Refusal) else Exchange(path, self, request, checked)

    def exchange_ended(self, request: IncomingRequest) -> None:
        """The exchange has written all it will write."""
        self._exchange = None
        self.release_body(request)
        self._request_done(request)

    def _request_done(self, request: IncomingRequest) -> None:
        self._since_s = monotonic()
        if request.wants_websocket:
            if self._reader.early:
                request.keep_alive = False  # what followed the declined handshake is no HTTP
            self._reader.early = None
        if not request.keep_alive:
            self._path.writes.flush()
            self.transport.close()
        elif self._waiting:
            self._next()
        else:
            self.say_continue()

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
        elif self._reader.receiving:
            self._reader.refuse(STOPPED.refusal)
            return True
        self._path.writes.flush()
        self.transport.close()
        return exchange is not None

    def break_off(self) -> None:
        """The answer cannot be completed: end the connection so that the caller can tell."""
        self._path.writes.flush()
        self.transport.abort()

    def tunnel_to(self, connection: "UpstreamConnection", head: bytes, rest: bytes) -> None:
        """From now on pass bytes on as they come, both ways."""
        assert isinstance(self._exchange, Exchange)
        self._path.writes.flush()
        self.transport.write(head + rest)
        if self._reader.early:
            connection.transport.write(bytes(self._reader.early))
        self._tunnel = Tunnel(self.transport, connection.transport, self._exchange.tunnel_ended)

    def _write_refusal(self, refusal: Refusal) -> None:
        request = self._reader.request
        request.keep_alive = False
        if not request.request_id:
            request.request_id = self._path.next_request_id()
        self._path.refused_by_gateway(refusal, request)
        self.out.prepare(request)
        self.out.refusal(refusal)
        self._since_s = monotonic()
        self._path.writes.flush()
        if self.transport.can_write_eof():  # TLS has no such thing: the caller sees the end after `LINGER_S`
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
        elif self._reader.stopped:
            if waited_s > LINGER_S:
                self.transport.abort()
        elif self._reader.receiving:
            if waited_s > timeouts.request_s:
                self._reader.refuse(self._path.request_too_slow)
        else:
            limit_s = DRAIN_IDLE_S if self._path.draining else timeouts.keep_alive_s
            if waited_s > limit_s and not has_arrived(self.transport, select.POLLIN):
                self.transport.close()
