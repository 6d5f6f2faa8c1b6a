"""Reads one caller's requests from the bytes of its connection, within limits."""

from typing import TYPE_CHECKING

import httptools

from poise.core.errors import Refusal
from poise.proxy.local import local_answer
from poise.proxy.request import IncomingRequest

if TYPE_CHECKING:
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath

BAD_REQUEST = Refusal(400, "bad_request", "the request is not valid HTTP/1.1", "caller")


class RequestReader:
    """Hands whole requests to its connection, or the refusal of one that it reads no further.

    `request` is the one that is being read, or was read last; `receiving` says that it is not complete, `in_body` that
    its head is. `stopped`: a request was refused before its end, so that nothing behind it can be understood.
    """

    __slots__ = (
        "_connection", "_joined_parts", "_parser", "_partial", "_parts", "_path", "_received_bytes", "_receiving_bytes",
        "_unfinished_bytes", "early", "in_body", "on_body", "receiving", "request", "stopped",
    )  # fmt: skip

    def __init__(self, path: "DataPath", connection: "ClientConnection") -> None:
        self._path = path
        self._connection = connection
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        self._parser = httptools.HttpRequestParser(self)
        self.request = IncomingRequest()
        self.receiving = self.in_body = self._partial = self.stopped = False
        self._received_bytes = 0
        self._joined_parts = 0
        self._receiving_bytes = 0
        """Received of a body that is not complete ..."""
        self._unfinished_bytes = 0
        """... and how much of that is kept."""
        self.early: bytearray | None = None
        """What the caller sent behind a WebSocket handshake that the replica has not answered; None without one."""

    def feed(self, data: bytes) -> None:
        """The next bytes of the connection."""
        if self.early is not None:
            self.early += data
            if len(self.early) > self._path.settings.limits.head_bytes:
                self._connection.break_off()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.refuse(BAD_REQUEST)
        if self.receiving and not self.stopped:
            self._check_unfinished(len(data))

    def refuse(self, refusal: Refusal) -> None:
        """Read no further: the request that is being read is refused, and the connection ends with that."""
        self.stopped = True
        if not self.receiving:
            self.request = IncomingRequest()  # what is refused is not the last request that was read whole
        self.receiving = False
        self._parts.clear()
        self._connection.account(-self._unfinished_bytes)
        self._receiving_bytes = self._unfinished_bytes = 0
        self._connection.refused(refusal)

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on after a head that asked for another protocol, where the parser stopped.

        A WebSocket handshake is taken up by its exchange; any other upgrade is declined by answering as usual. The
        parser has skipped the body that such a request may have: it is read by a new one, from a head of our own.
        """
        request = self.request
        while not self.stopped:
            self._parser = httptools.HttpRequestParser(self)
            try:
                if self.receiving:
                    framing = b"content-length: %d" % request.declared_bytes
                    if request.coding:
                        framing = b"transfer-encoding: chunked"
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                if request.wants_websocket:
                    self.early = bytearray(rest)
                elif rest:
                    self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest, request = rest[upgrade.args[0] :], self.request
            except httptools.HttpParserError:
                self.refuse(BAD_REQUEST)

    # -- httptools

    def on_url(self, url: bytes) -> None:
        if self.receiving or self.stopped:
            if not self.in_body:
                self.request.target += url  # the target came in several reads
            return
        self.request = request = IncomingRequest()
        request.target = url
        self.receiving = True
        self.in_body = self._partial = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_body:  # later ones are trailers, which nobody reads
            self.request.add_header(name, value)

    def on_headers_complete(self) -> None:
        if self.in_body or self.stopped:
            return
        request, parser = self.request, self._parser
        self.in_body = True
        request.method = parser.get_method()
        request.keep_alive = parser.should_keep_alive()
        if not request.keep_alive or request.connection is not None:
            version = parser.get_http_version()
            if version == "1.0":
                request.http10, request.keep_alive = True, False
            elif version != "1.1":
                self.refuse(BAD_REQUEST)
                return
        request.head_complete()
        limits = self._path.settings.limits
        if self._received_bytes > limits.head_bytes and request.head_bytes > limits.head_bytes:
            self.refuse(self._path.head_too_large)
            return
        request.own_answer = own = local_answer(self._path, request)
        if request.declared_bytes > limits.body_bytes:
            self.refuse(self._path.body_too_large)
        elif isinstance(own, Refusal) and request.expects_continue:
            self.refuse(own)
        else:
            self._connection.say_continue()

    def on_message_complete(self) -> None:
        request, parts = self.request, self._parts
        if self.stopped or (request.has_body and self._parser.should_upgrade()):
            return  # the body of a request that asks for an upgrade is still to come: `_decline_upgrade`
        self.receiving = False
        self._received_bytes = 0
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._receiving_bytes = self._joined_parts = 0
        self._connection.account(len(request.body) - self._unfinished_bytes)
        self._unfinished_bytes = 0
        if len(request.body) > self._path.settings.limits.body_bytes:
            self.refuse(self._path.body_too_large)
        elif self._path.over_budget:
            self.refuse(self._path.buffers_full)
        else:
            self._connection.arrived(request)

    # -- limits

    def _check_unfinished(self, received_bytes: int) -> None:
        """Part of a request has come: is it still within its limits?"""
        limits = self._path.settings.limits
        if not self._partial:
            self._partial = True
            self._connection.reading_began()
        if not self.in_body:
            if self._received_bytes > limits.head_bytes:
                self.refuse(self._path.head_too_large)
            return
        self._receiving_bytes += received_bytes
        if len(self._parts) > self._joined_parts + 1:
            # Tiny chunks would each be kept as an object many times their size.
            self._parts[self._joined_parts :] = [b"".join(self._parts[self._joined_parts :])]
        self._joined_parts = len(self._parts)
        if isinstance(self.request.own_answer, Refusal):
            self._joined_parts = 0
            self._parts.clear()  # nobody will read it: the rest is let pass so that the connection can go on
        else:
            self._unfinished_bytes += received_bytes
            self._connection.account(received_bytes)
        if max(self._receiving_bytes - limits.head_bytes, self.request.declared_bytes) > limits.body_bytes:
            self.refuse(self._path.body_too_large)
        elif self._path.over_budget:
            self.refuse(self._path.buffers_full)
