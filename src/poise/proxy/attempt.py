"""One attempt of a request at one replica: its ticket, its connection, and what is sent on it."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from poise.core.errors import is_exhausted, nothing_listens
from poise.core.request import Outcome
from poise.health.breaker import Sign
from poise.proxy.request import without_keys
from poise.proxy.retry import EXHAUSTED, NOTHING_LISTENS, UNREACHABLE, Failure

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.fleet.ticket import Ticket
    from poise.proxy.data_path import DataPath
    from poise.proxy.exchange import Exchange
    from poise.proxy.request import IncomingRequest
    from poise.proxy.upstream import UpstreamConnection

STALE_WITHIN_S = 1.0
"""A reused connection that ends silently later than this after a request was sent has not been stale: the replica, or
something on the way, gave the request up, and sending it again counts as a retry."""
FLOW_S = 0.5
"""How often a stream that flows is reported to the fleet."""


class Attempt:
    """A request on its way to `replica`, from the charge to the settled ticket.

    Invariants: the ticket is settled exactly once; after `let_go` nothing of the replica's answer reaches the exchange.
    """

    __slots__ = (
        "_connecting", "_connection", "_exchange", "_has_output", "_path", "_request", "_ticket", "reason", "replica",
        "sent_s", "sign", "trace_headers",
    )  # fmt: skip

    def __init__(
        self, path: "DataPath", exchange: "Exchange", request: "IncomingRequest", ticket: "Ticket", reason: str
    ) -> None:
        self._path = path
        self._exchange = exchange
        self._request = request
        self._ticket = ticket
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.replica: Replica = ticket.replica
        self.reason = reason
        """Why the policy chose the replica."""
        self.sent_s = ticket.dispatched_at_s
        self.sign: int | None = None
        """What its end says of the replica, if not what its outcome does."""
        self._has_output = False
        self.trace_headers = b""
        """Header lines that make the replica's work part of the request's trace."""

    def start(self, now_s: float, *, fresh: bool = False) -> None:
        """Send the request, at once if there is an idle connection and it need not be `fresh`."""
        connections = self._path.connections(self.replica)
        connection = None if fresh else connections.take(now_s)
        if connection is not None:
            self._send_on(connection, now_s)
        else:
            self._connecting = self._path.tasks.spawn(self._connect(), name="connect to replica")

    async def _connect(self) -> None:
        connections = self._path.connections(self.replica)
        try:
            async with asyncio.timeout(self._path.settings.timeouts.connect_s):
                connection = await connections.connect()
        except (OSError, ValueError) as error:  # TimeoutError is an OSError, a bad host name a ValueError
            self._connecting = None
            self._exchange.attempt_failed(_failure(error))
            return
        self._connecting = None
        self._send_on(connection, monotonic())

    def _send_on(self, connection: "UpstreamConnection", now_s: float) -> None:
        request = self._request
        body = request.body
        connections = connection.connections
        withheld = connections.key is not None or self._path.keys is not None
        target = without_keys(request.target) if withheld and b"?" in request.target else request.target
        parts = [request.method, b" ", connections.base, target, connections.head, *request.head, self.trace_headers]
        parts += (b"x-request-id: ", request.request_id)
        if not withheld:
            for name, value in request.credentials:
                parts += (b"\r\n", name, b": ", value)
        if request.rank is not None and not connections.has_rank:
            parts += (b"\r\nx-data-parallel-rank: ", request.rank)
        if body or request.method == b"POST":
            parts.append(b"\r\ncontent-length: %d\r\n\r\n" % len(body))
        else:
            parts.append(b"\r\n\r\n")
        if request.wants_websocket:
            parts[-1] = b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        self._connection = connection
        self.sent_s = now_s
        exchange = self._exchange
        exchange.sent()
        if exchange.caller_is_slow:
            connection.set_reading(False)
        connection.send(exchange, b"".join(parts), body)

    # -- while it runs

    def first_output(self, now_s: float) -> None:
        """The engine has begun to answer."""
        self._has_output = True
        self._path.fleet.first_output(self._ticket, now_s)

    def flows(self, now_s: float) -> None:
        """Bytes of the answer have come lately. Told to the fleet now and then, as it costs time for every stream."""
        flowed_at_s = self.replica.condition.flowed_at_s
        if flowed_at_s is None or now_s - flowed_at_s > FLOW_S:
            self._path.fleet.flowed(self.replica, now_s)

    def set_reading(self, wanted: bool) -> None:
        """Read the answer on, or leave it in the network until the caller has caught up."""
        if self._connection is not None:
            self._connection.set_reading(wanted)

    def made_progress_within(self, seconds: float, now_s: float) -> bool:
        """Whether the replica was seen to produce output, for whomever, in the last `seconds`."""
        progress_at_s = self.replica.condition.progress_at_s
        return progress_at_s is not None and now_s - progress_at_s < seconds

    def may_have_been_stale(self, now_s: float) -> bool:
        """Whether a reused connection that ended silently was closed before the replica saw the request, which it may
        be sent again then. A replica that leaves is sent nothing, and may be gone with this request: that is a retry.
        """
        return now_s - self.sent_s < STALE_WITHIN_S and not self.replica.leaving

    # -- ending

    def connection_done(self) -> None:
        """The connection has given its answer, or has become a tunnel: it is not the attempt's any more."""
        self._connection = None

    def let_go(self) -> None:
        """The answer is no longer wanted: the replica must see its peer close."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.exchange is self._exchange:
            connection.let_go()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()

    def settle(self, outcome: Outcome, now_s: float) -> None:
        """The attempt has ended, for the fleet's ledger too."""
        sign, route = self.sign, self._request.route
        if sign is None and route is not None and not route.timed:
            sign = Sign.NOTHING  # a server whose engine hangs may well count tokens
        if sign == Sign.SILENT:
            timeouts = self._path.settings.timeouts
            limit_s = timeouts.idle_s if self._has_output else timeouts.first_output_s
            sign = Sign.NOTHING if self.made_progress_within(limit_s, now_s) else Sign.FAILED
        self._path.fleet.settle(self._ticket, outcome, now_s, sign)


def _failure(error: Exception) -> Failure:
    """What it means that no connection could be made."""
    if not isinstance(error, OSError):
        return UNREACHABLE
    return EXHAUSTED if is_exhausted(error) else NOTHING_LISTENS if nothing_listens(error) else UNREACHABLE
