"""The data path: listens, and ties connections to fleet, policy, limits and counters."""

import asyncio
import secrets
import ssl
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from poise.admission.idempotency import IdempotencyStore
from poise.admission.key_limits import KeyLimits
from poise.core.errors import Refusal
from poise.core.tasks import TaskGroupOwner
from poise.proxy.client import ClientConnection
from poise.proxy.connections import ReplicaConnections
from poise.proxy.counters import Counters
from poise.proxy.keyed import KeyedRequests
from poise.proxy.listener import Listener
from poise.proxy.local import ModelList
from poise.proxy.request import IncomingRequest
from poise.proxy.request_log import RequestLine, RequestLog
from poise.proxy.retry import RetryBudget
from poise.proxy.trail import Trails
from poise.proxy.waiting import WaitingLines
from poise.proxy.write_batch import WriteBatch
from poise.routing.model_names import NO_NAMES
from poise.routing.response_homes import ResponseHomes

if TYPE_CHECKING:
    from poise.admission.keys import KeyRing
    from poise.fleet.fleet import Fleet
    from poise.fleet.replica import Replica
    from poise.proxy.settings import DataPathSettings
    from poise.routing.policy import Policy

TICK_S = 0.1
"""How often time limits are looked at: every limit is kept to within this."""
BACKLOG = 4096
SHUTDOWN_S = 5.0
"""How long a caller over TLS has to take what was written and to say goodbye."""
LAST_WRITES_S = 0.5
"""How long callers have at the very end to take what was written to them."""


class DataPath:
    """The data port. Owns the callers' and the replicas' connections; reports every fact to the fleet."""

    def __init__(  # noqa: PLR0913  everything that it works with
        self,
        settings: "DataPathSettings",
        fleet: "Fleet",
        policy: "Policy",
        *,
        keys: "KeyRing | None" = None,
        models: ModelList | None = None,
        log: RequestLog | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.policy = policy
        self.keys = keys
        self.key_limits = KeyLimits()
        if keys is not None:
            self.key_limits.apply(keys, monotonic())
        self.models = models
        self.log = log
        self._tls = tls
        self.names = NO_NAMES
        """What callers may call the models; may be replaced at any time."""
        self.random = Random()
        self.counters = Counters()
        self.homes = ResponseHomes()
        self.keyed = KeyedRequests(self, IdempotencyStore(settings.idempotency))
        self.trails = Trails(settings.decisions_kept)
        self.waiting = WaitingLines(fleet, self.counters, settings.limits)
        self.clients: set[ClientConnection] = set()
        self.retries = RetryBudget(settings.retry.budget_ratio, settings.retry.budget_floor)
        self.tasks = TaskGroupOwner()
        self.draining = False
        """Whether the gateway is to stop: it is not ready, answers end their connections, and idle ones end soon."""
        self.writes = WriteBatch()
        self._connections: dict[Replica, ReplicaConnections] = {}
        self._listener: Listener | None = None
        self._request_id_prefix = secrets.token_hex(6).encode()
        self._requests = 0
        self.apply(settings)

    def apply(self, settings: "DataPathSettings") -> None:
        """Go by `settings` from now on. Where it listens, and what open connections of callers are sent, stays."""
        self.settings = settings
        self.waiting.apply(settings.limits)
        self.retries.ratio, self.retries.floor = settings.retry.budget_ratio, settings.retry.budget_floor
        self.keyed.store.apply(settings.idempotency)
        limits = settings.limits
        self.body_too_large = Refusal(
            413, "body_too_large", f"the request's body is larger than the limit of {limits.body_bytes} bytes", "caller"
        )
        self.head_too_large = Refusal(
            431, "head_too_large", f"the request's head is larger than the limit of {limits.head_bytes} bytes", "caller"
        )
        self.buffers_full = Refusal(
            503, "buffers_full", "the gateway holds as many request bodies as it may", "gateway", retry_after_s=1
        )
        self.request_too_slow = Refusal(
            408, "request_too_slow", f"the request did not arrive within {settings.timeouts.request_s:g} s", "caller"
        )

    async def start(self) -> None:
        """Listen. Raises `OSError` if the address cannot be had."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        server = await loop.create_server(
            self._new_client, settings.host, settings.port, backlog=BACKLOG, reuse_port=settings.reuse_port,
            **self._tls_options(),
        )  # fmt: skip
        self._listener = Listener(server)
        self.tasks.spawn(self._keep_time(), name="data path time limits")

    def _tls_options(self) -> dict[str, Any]:
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls,
            "ssl_handshake_timeout": self.settings.timeouts.request_s,
            "ssl_shutdown_timeout": SHUTDOWN_S,
        }

    async def close(self, drain_s: float = 0.0, delay_s: float = 0.0) -> int:
        """Take new connections for `delay_s` more, unless a newer process does; stop listening; give what is open
        `drain_s` to end; end what is left. Returns how many requests that cut."""
        self.draining = True
        if self._listener is not None:
            self._listener.hand_over()
            await asyncio.sleep(delay_s)
            listener, self._listener = self._listener, None
            for connection in listener.close():
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._new_client, connection, **self._tls_options()
                )
        await self._clients_gone(drain_s)
        cut = sum(client.stop() for client in tuple(self.clients))
        await self._clients_gone(LAST_WRITES_S)
        for client in tuple(self.clients):
            client.transport.abort()
        for connections in self._connections.values():
            connections.close()
        await self.tasks.close()
        if self.log is not None:
            self.log.flush()
        return cut

    async def _clients_gone(self, within_s: float) -> None:
        deadline_s = monotonic() + within_s
        while self.clients and monotonic() < deadline_s:  # noqa: ASYNC110 - once in a process
            await asyncio.sleep(0.01)

    def _new_client(self) -> asyncio.Protocol:
        return cast("asyncio.Protocol", ClientConnection(self))

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._listener is not None, "not listening"
        return self._listener.port

    @property
    def is_ready(self) -> bool:
        """Whether callers should come here: it listens, is not to stop, and some replica works, even if it is full.

        A replica that nobody has heard of does not count, though requests may try it.
        """
        return (
            self._listener is not None
            and not self.draining
            and any(replica.condition.seen and (replica.available or replica.full) for replica in self.fleet)
        )

    @property
    def over_budget(self) -> bool:
        """Whether more body bytes are held than allowed."""
        return self.counters.buffered_bytes > self.settings.limits.buffered_bytes

    def next_request_id(self) -> bytes:
        """An id for a request that came without one, unique over processes and restarts."""
        self._requests += 1
        return b"%b%x" % (self._request_id_prefix, self._requests)

    def use_keys(self, keys: "KeyRing") -> None:
        """From now on these are the keys; there were some before. What was used of those that stay is not forgotten."""
        assert self.keys is not None
        self.keys.become(keys)
        self.key_limits.apply(self.keys, monotonic())

    def connections(self, replica: "Replica") -> ReplicaConnections:
        """The connections to `replica`."""
        found = self._connections.get(replica)
        if found is None:
            found = self._connections[replica] = ReplicaConnections(replica, self.writes)
        return found

    def refused_by_gateway(self, refusal: Refusal, request: IncomingRequest) -> None:
        """Count and log a request that never became an exchange."""
        self.counters.refusals[refusal.code] += 1
        if self.log is not None:
            route = request.route.name if request.route else "none"
            self.log.write(
                RequestLine(
                    request.request_id.decode(), route, "refused", refusal.status, None, None, 0, None, False,
                    request.key_name, None, None, 0.0, None, None, None, refusal.code,
                )
            )  # fmt: skip

    def report(self, message: str, error: Exception) -> None:
        """Tell the operator, through the event loop's handler, of an error that only one caller suffers from."""
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def _keep_time(self) -> None:
        while True:
            self.counters.times.follow(self.fleet.served_models)
            await asyncio.sleep(TICK_S)
            self.trails.tick()
            now_s = monotonic()
            self.fleet.heal(now_s)
            for client in tuple(self.clients):
                try:
                    client.tick(now_s)
                except Exception as error:  # noqa: BLE001 - everybody's time limits depend on this loop
                    self.report("a caller's time limits could not be looked at", error)
            self.keyed.store.expire(now_s)
            try:
                self.waiting.ask()
            except Exception as error:  # noqa: BLE001 - as above
                self.report("those who wait could not be asked", error)
            self._retire_connections()
            if self.log is not None:
                self.log.flush()

    def _retire_connections(self) -> None:
        for replica, connections in tuple(self._connections.items()):
            connections.retire()
            if not self.fleet.holds(replica) and connections.open:
                connections.close()
                del self._connections[replica]
