"""A connection that has switched protocols (WebSocket): bytes go both ways, each side held to the other's pace."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.proxy.client import ClientConnection
    from poise.proxy.exchange import Exchange
    from poise.proxy.upstream import UpstreamConnection


class TunnelEnd(asyncio.Protocol):
    """One side; what it receives is written to `peer`."""

    def __init__(self, own: asyncio.Transport, peer: asyncio.Transport, ended: Callable[[], None]) -> None:
        self._own = own
        self._peer = peer
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._peer.write(data)

    def pause_writing(self) -> None:
        self._peer.pause_reading()

    def resume_writing(self) -> None:
        self._peer.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.close()
        self._ended()


def join_tunnel(client: "ClientConnection", upstream: "UpstreamConnection", exchange: "Exchange") -> None:
    """Join both connections; the exchange is complete when either ends."""
    client.transport.set_protocol(TunnelEnd(client.transport, upstream.transport, exchange.tunnel_ended))
    upstream.transport.set_protocol(TunnelEnd(upstream.transport, client.transport, exchange.tunnel_ended))
    upstream.transport.resume_reading()
