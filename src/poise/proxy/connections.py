"""The keep-alive connections to one replica, and how long they may be trusted."""

import asyncio
import time
from base64 import b64encode
from typing import TYPE_CHECKING, cast

from poise.core.dial import Dialer
from poise.proxy.upstream import UpstreamConnection
from poise.proxy.write_batch import WriteBatch

if TYPE_CHECKING:
    from poise.fleet.replica import Replica

REUSE_S = 4.0
"""Longest idle time before a connection is retired: vLLM closes idle ones after 5.0 s (uvicorn's default)."""
CHECK_AFTER_S = 0.5
"""Idle for longer than this, a connection's end may have arrived without the loop having looked at it yet."""
LEARNED_SHARE = 0.8
"""A replica seen to close after t seconds is trusted with idle connections for this share of t ..."""
LEARNED_FOR_S = 60.0
"""... for so long, as it may have closed them for another reason, such as a restart."""


class ReplicaConnections:
    """Idle connections to one replica, newest on top. Counterpart: `UpstreamConnection`."""

    __slots__ = (
        "_dialer",
        "_hosts",
        "_idle",
        "_learned_until_s",
        "_replica",
        "_reuse_s",
        "authority",
        "base",
        "has_rank",
        "head",
        "key",
        "open",
        "tls",
        "writes",
    )

    def __init__(self, replica: "Replica", writes: WriteBatch) -> None:
        self._replica = replica
        self._hosts = replica.hosts
        """Those that idle connections were last compared with."""
        self.writes = writes
        address = replica.spec.address
        self._dialer = Dialer(address)
        self.tls = address.tls
        self.has_rank = address.rank is not None
        self._idle: list[UpstreamConnection] = []
        self._reuse_s = REUSE_S
        self._learned_until_s = 0.0
        self.open = True
        self.authority = address.authority.encode()
        self.base = address.base.encode()
        """What comes before every target."""
        self.key = None if address.api_key is None else address.api_key.reveal().encode()
        """The replica's own, which requests then carry, and nobody else's."""
        key = b"" if self.key is None else b"authorization: Bearer %b\r\n" % self.key
        rank = b"" if address.rank is None else b"x-data-parallel-rank: %d\r\n" % address.rank
        self.head = b" HTTP/1.1\r\nhost: %b\r\n%b%b" % (self.authority, rank, key)
        """What follows method and target in every request to this replica."""

    def masked(self, body: bytes) -> bytes:
        """What the replica says, without its key: errors like to repeat what they were sent. The length stays."""
        assert self.key is not None
        for form in (self.key, b64encode(self.key).rstrip(b"=")):
            body = body.replace(form, b"*" * len(form))
        return body

    def take(self, now_s: float) -> UpstreamConnection | None:
        """An idle connection that the replica has not closed and will not have closed when the request gets there."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            idle_s = now_s - connection.idle_since_s
            if idle_s < CHECK_AFTER_S and not connection.transport.is_closing():
                return connection
            if idle_s < self._reuse_limit_s(now_s) and not connection.closed_by_replica:
                return connection
            connection.transport.abort()
        return None

    def give_back(self, connection: UpstreamConnection) -> None:
        """The connection has answered and may be used again."""
        hosts = self._replica.hosts
        if not self.open or (hosts and connection.host not in hosts):
            connection.transport.close()
            return
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        """An idle connection has ended. If the replica ended it, learn how long it keeps them."""
        if connection in self._idle:
            self._idle.remove(connection)
            now_s = time.monotonic()
            idle_s = now_s - connection.idle_since_s
            if idle_s >= CHECK_AFTER_S:
                self._reuse_s = min(self._reuse_limit_s(now_s), idle_s * LEARNED_SHARE)
                self._learned_until_s = now_s + LEARNED_FOR_S

    def retire(self) -> None:
        """Close connections that have been idle for too long, or lead to an address that is not the replica's now."""
        hosts = self._replica.hosts
        if hosts != self._hosts:
            self._hosts = hosts
            for connection in [connection for connection in self._idle if connection.host not in hosts]:
                self._idle.remove(connection)
                connection.transport.close()
        now_s = time.monotonic()
        limit_s = self._reuse_limit_s(now_s)
        while self._idle and now_s - self._idle[0].idle_since_s > limit_s:
            self._idle.pop(0).transport.close()

    def close(self) -> None:
        """Close all idle connections and keep none from now on."""
        self.open = False
        while self._idle:
            self._idle.pop().transport.close()

    async def connect(self) -> UpstreamConnection:
        """A new connection. Raises `OSError` if the replica cannot be reached."""
        protocol, host = await self._dialer.open(
            lambda: cast("asyncio.Protocol", UpstreamConnection(self)), self._replica.hosts
        )
        connection = cast("UpstreamConnection", protocol)
        connection.host = host
        return connection

    def _reuse_limit_s(self, now_s: float) -> float:
        if self._learned_until_s and now_s > self._learned_until_s:
            self._reuse_s, self._learned_until_s = REUSE_S, 0.0
        return self._reuse_s
