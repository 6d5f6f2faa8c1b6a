"""A connection that has switched protocols (WebSocket): bytes go both ways, each side held to the other's pace."""

import asyncio
from collections.abc import Callable
from time import monotonic


class TunnelEnd(asyncio.Protocol):
    """One side; what it receives is written to `peer`. `stalled_since_s` is when it stopped taking what is written."""

    def __init__(self, own: asyncio.Transport, peer: asyncio.Transport, ended: Callable[[], None]) -> None:
        self._own = own
        self._peer = peer
        self._ended = ended
        self.stalled_since_s: float | None = None

    def data_received(self, data: bytes) -> None:
        self._peer.write(data)

    def pause_writing(self) -> None:
        self.stalled_since_s = monotonic()
        self._peer.pause_reading()

    def resume_writing(self) -> None:
        self.stalled_since_s = None
        self._peer.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.close()
        self._ended()

    def cut_if_stalled(self, before_s: float) -> None:
        """End the tunnel if this side has taken nothing since before that time."""
        if self.stalled_since_s is not None and self.stalled_since_s < before_s:
            self._own.abort()
            self._peer.abort()


class Tunnel:
    """Both ends. `ended` is called when either ends, once by each."""

    def __init__(self, caller: asyncio.Transport, replica: asyncio.Transport, ended: Callable[[], None]) -> None:
        self._ends = TunnelEnd(caller, replica, ended), TunnelEnd(replica, caller, ended)
        for transport, end in zip((caller, replica), self._ends, strict=True):
            transport.set_protocol(end)
            transport.resume_reading()

    def cut_if_stalled(self, before_s: float) -> None:
        """End the tunnel if either side has taken nothing since before that time."""
        for end in self._ends:
            end.cut_if_stalled(before_s)
