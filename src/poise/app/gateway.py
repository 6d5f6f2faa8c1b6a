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
        self._drain_s = 0.0
        self._closing = False

    @property
    def port(self) -> int:
        """The data port that is listened on."""
        return self.data_path.port

    @property
    def admin_port(self) -> int:
        """The admin port that is listened on."""
        port: int = self._admin_socket.getsockname()[1]
        return port

    @property
    def is_ready(self) -> bool:
        """Whether a request that came now could be placed."""
        return not self._closing and self.data_path.could_place

    async def start(self) -> None:
        """Start every part, callers last; if one cannot start, none is left running."""
        async with AsyncExitStack() as parts:
            if self._request_log is not None:
                parts.callback(self._request_log.close)
            self._admin_socket = _listen(self.settings.admin.host, self.settings.admin.port)
            admin = AdminServer(admin_app(self._sources, lambda: self.is_ready), self._admin_socket)
            await admin.start()
            parts.push_async_callback(admin.close)
            await self.poller.start()
            parts.push_async_callback(self.poller.close)
            try:
                await self.data_path.start()
            except OSError as error:
                raise PortError(self.settings.host, self.settings.port, error) from None
            parts.push_async_callback(lambda: self.data_path.close(self._drain_s))
            self._parts = parts.pop_all()

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more callers, give open requests `drain_s` to end, then stop every part in reverse order."""
        self._closing, self._drain_s = True, drain_s
        await self._parts.aclose()

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


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise PortError(host, port, error) from None
