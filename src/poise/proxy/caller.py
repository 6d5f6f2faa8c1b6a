"""Whoever an exchange answers: one caller's connection, or several callers who sent the same request."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.proxy.request import IncomingRequest
    from poise.proxy.response import ResponseWriter
    from poise.proxy.upstream import UpstreamConnection


class Caller:
    """What an exchange asks of those it answers. A base class rather than a protocol, for the compiler."""

    out: "ResponseWriter"
    """Where the answer is written."""
    write_paused: bool
    """Whether what was written has not been taken, so that no more should be."""

    def account(self, change_bytes: int) -> None:
        """More or less of bodies is kept."""
        raise NotImplementedError

    def change_body(self, request: "IncomingRequest", body: bytes) -> None:
        """The request is sent on with another body."""
        self.account(len(body) - len(request.body))
        request.body = body

    def release_body(self, request: "IncomingRequest") -> None:
        """The body will not be needed again: no other replica will be tried."""
        self.change_body(request, b"")

    def break_off(self) -> None:
        """The answer cannot be completed, and those who read it must be able to tell."""
        raise NotImplementedError

    def exchange_ended(self, request: "IncomingRequest") -> None:
        """The exchange has written all it will write."""
        raise NotImplementedError

    def tunnel_to(self, connection: "UpstreamConnection", head: bytes, rest: bytes) -> None:
        """From now on pass bytes on as they come, both ways."""
        raise NotImplementedError

    def forget(self) -> None:
        """The connection has ended, or is a tunnel that has."""
        raise NotImplementedError
