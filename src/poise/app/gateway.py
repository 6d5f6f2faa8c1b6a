"""The composition root: builds every part of the gateway, and owns the order in which they start and stop."""

import socket
from contextlib import AsyncExitStack
from random import Random
from types import TracebackType
from typing import Self

from poise.admin.metrics import Sources
from poise.admin.server import AdminServer, admin_app
from poise.app.errors import PortError, StartError
from poise.config.parts import data_path_settings, key_ring, policy, replica_specs, telemetry_settings
from poise.config.settings import Settings
from poise.core.errors import ConfigError
from poise.fleet.fleet import Fleet
from poise.proxy.data_path import DataPath
from poise.proxy.listener import SharedPort
from poise.proxy.request_log import RequestLog
from poise.routing.registry import policy_name
from poise.telemetry.poller import Poller


class Gateway:
    """One gateway in the running event loop: `async with Gateway(settings)`, or `start` and `close`.

    Raises `ConfigError` if there is no replica, `StartError` if a file or port cannot be had.
    """

    def __init__(self, settings: Settings, random: Random | None = None) -> None:
        if not settings.replicas:
            raise ConfigError(
                "there is no replica to send requests to",
                hint="poise serve --replica http://host:8000, or poise demo to try it without one",
            )
        self.settings = settings
        self.fleet = Fleet(kv_throttle_ratio=settings.limits.kv_throttle, stale_s=settings.telemetry.stale_s)
        for spec in replica_specs(settings):
            self.fleet.join(spec)
        self.poller = Poller(self.fleet, telemetry_settings(settings))
        self._request_log = _open_request_log(settings.log.requests)
        self.data_path = DataPath(
            data_path_settings(settings),
            self.fleet,
            policy(settings, random or Random()),
            keys=key_ring(settings),
            models=self.poller.catalog,
            log=self._request_log,
        )
        self._sources = Sources(self.fleet, self.data_path.counters, policy_name(settings.policy.name))
        self._parts = AsyncExitStack()

    @property
    def port(self) -> int:
        """The data port that is listened on."""
        return self.data_path.port

    @property
    def admin_port(self) -> int:
        """The admin port that is listened on."""
        port: int = self._admin_port.socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Start every part, callers last; if one cannot start, none is left running."""
        await self.watch()
        try:
            await self.listen()
        except BaseException:
            await self.close()
            raise

    async def watch(self) -> None:
        """Start all that concerns replicas and operators, but take no caller yet."""
        async with AsyncExitStack() as parts:
            if self._request_log is not None:
                parts.callback(self._request_log.close)
            admin = self.settings.admin
            listening = _listen(admin.host, admin.port, reuse_port=self.settings.reuse_port)
            self._admin_port = SharedPort(listening)
            server = AdminServer(admin_app(self._sources, lambda: self.data_path.is_ready), listening)
            await server.start()
            parts.push_async_callback(server.close)
            await self.poller.start()
            parts.push_async_callback(self.poller.close)
            self._parts = parts.pop_all()

    async def listen(self) -> None:
        """Take callers from now on. Raises `PortError` if the port cannot be had; what `watch` started goes on then."""
        try:
            await self.data_path.start()
        except OSError as error:
            raise PortError(self.settings.host, self.settings.port, error) from None

    async def close(self, drain_s: float = 0.0, delay_s: float = 0.0) -> int:
        """Stop as `DataPath.close` says, then stop every other part in reverse order. Returns how many were cut."""
        self._admin_port.hand_over()
        cut = await self.data_path.close(drain_s, delay_s)
        await self._parts.aclose()
        return cut

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _open_request_log(path: str | None) -> RequestLog | None:
    if path is None:
        return None
    try:
        return RequestLog(path)
    except OSError as error:
        raise StartError(
            f"request log {path} cannot be written: {error.strerror}", hint="give a path that may be written, or -"
        ) from None


def _listen(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, reuse_port=reuse_port)
    except OSError as error:
        raise PortError(host, port, error) from None
