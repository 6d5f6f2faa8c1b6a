"""The composition root: builds every part of the gateway, and owns the order in which they start and stop."""

import os
import socket
from contextlib import AsyncExitStack
from random import Random
from ssl import SSLContext
from types import TracebackType
from typing import Self

import structlog
from starlette.applications import Starlette

from poise.admin.metrics import Sources
from poise.admin.server import AdminServer, admin_app
from poise.app.certificates import CertificateWatch
from poise.app.errors import PortError, StartError
from poise.app.host_names import HostNames, Resolve, resolve
from poise.app.log import configure_log
from poise.app.membership import Membership
from poise.app.reload import Follower, KeysReloader, Reloader
from poise.app.upkeep import Upkeep
from poise.config.changes import needs_restart
from poise.config.load import ConfigInputs
from poise.config.parts import (
    admin_key,
    breaker_settings,
    data_path_settings,
    health_settings,
    key_ring,
    model_names,
    policy,
    port_files,
    replica_specs,
    telemetry_settings,
    tracing_settings,
)
from poise.config.settings import Settings, TlsSection
from poise.core.errors import ConfigError
from poise.core.replica import TlsFiles
from poise.core.tls import client_context, server_context
from poise.fleet.fleet import Fleet
from poise.proxy.data_path import DataPath
from poise.proxy.listener import SharedPort
from poise.proxy.request_log import RequestLog
from poise.routing.model_names import ModelNames
from poise.routing.registry import policy_name
from poise.telemetry.poller import Poller
from poise.tracing.opening import open_tracing

log = structlog.get_logger()


class Gateway:
    """One gateway in the running event loop: `async with Gateway(settings)`, or `start` and `close`.

    `inputs` is what the settings came from, and is followed; None for settings that stay as they are. `resolve` looks
    host names up.
    Raises `ConfigError` if there is no replica, `StartError` if a file or port cannot be had.
    """

    def __init__(
        self, settings: Settings, random: Random | None = None, *, inputs: ConfigInputs | None = None,
        resolve: Resolve = resolve,
    ) -> None:  # fmt: skip
        _check_replicas(settings)
        self.settings = self._started_with = settings
        self._random = random or Random()
        self._environment = os.environ if inputs is None else inputs.environment
        self._admin_key = admin_key(settings, self._environment)
        self._reloaders: list[Follower] = []
        if inputs is not None:
            self._reloaders.append(Reloader(inputs, self.apply))
        if settings.keys.file is not None:
            self._reloaders.append(KeysReloader(settings.keys.file, lambda keys: self.data_path.use_keys(keys)))
        health = health_settings(settings)
        self.fleet = Fleet(
            kv_throttle_ratio=settings.limits.kv_throttle,
            stale_s=settings.telemetry.stale_s,
            breaker=breaker_settings(settings),
            health=health,
        )
        names = HostNames(resolve)
        self.membership = Membership(self.fleet, names.addresses, self._environment if self._admin_key else None)
        self.membership.configure(replica_specs(settings, self._environment))
        self._ports = {
            files: server_context(files)
            for files in (port_files(settings.tls), port_files(settings.admin.tls))
            if files
        }
        chores = [*(reloader.look for reloader in self._reloaders), CertificateWatch(self._tls_in_use).look]
        self._upkeep = Upkeep(self.membership, names, chores, lambda: self.settings.membership)
        self.poller = Poller(self.fleet, telemetry_settings(settings), health)
        self._request_log = _open_request_log(settings.log.requests)
        self.data_path = DataPath(
            data_path_settings(settings),
            self.fleet,
            policy(settings, self._random),
            keys=key_ring(settings),
            models=self.poller.catalog,
            log=self._request_log,
            tls=self._port_tls(settings.tls),
        )
        tracing = tracing_settings(settings)
        self._tracing = None if tracing is None else open_tracing(tracing, Random())
        self.data_path.trails.tracer = self._tracing
        self.name_models(model_names(settings))
        self._sources = Sources(
            self.fleet,
            self.data_path.counters,
            policy_name(settings.policy.name),
            self._request_log,
            self.data_path.trails,
            self.data_path.waiting.queue,
            self.data_path.key_limits,
        )
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

    def name_models(self, names: ModelNames) -> None:
        """Use these aliases and fallbacks from now on, for requests as well as in the model list."""
        self.data_path.names = names
        self.poller.catalog.show_aliases(names.aliases)

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
            if self._tracing is not None:
                parts.callback(self._tracing.close)
            admin = self.settings.admin
            listening = _listen(admin.host, admin.port, reuse_port=self.settings.reuse_port)
            self._admin_port = SharedPort(listening)
            server = AdminServer(self._admin_app(), listening, self._port_tls(admin.tls))
            await server.start()
            parts.push_async_callback(server.close)
            parts.push_async_callback(self._upkeep.close)
            await self._upkeep.start()
            await self.poller.start()
            parts.push_async_callback(self.poller.close)
            self._parts = parts.pop_all()

    def _port_tls(self, section: TlsSection) -> SSLContext | None:
        files = port_files(section)
        return None if files is None else self._ports[files]

    def _tls_in_use(self) -> dict[TlsFiles, SSLContext]:
        return self._ports | {files: client_context(files) for files in self.membership.tls_files}

    def _admin_app(self) -> Starlette:
        return admin_app(self._sources, lambda: self.data_path.is_ready, self.membership, self._admin_key)

    async def listen(self) -> None:
        """Take callers from now on. Raises `PortError` if the port cannot be had; what `watch` started goes on then."""
        try:
            await self.data_path.start()
        except OSError as error:
            raise PortError(self.settings.host, self.settings.port, error, to_share=True) from None

    async def close(self, drain_s: float = 0.0, delay_s: float = 0.0) -> int:
        """Stop as `DataPath.close` says, then stop every other part in reverse order. Returns how many were cut."""
        self._admin_port.hand_over()
        cut = await self.data_path.close(drain_s, delay_s)
        await self._parts.aclose()
        return cut

    def reload(self) -> None:
        """Read the configuration and the keys again now, if the gateway has them, and open the request log anew."""
        if self._request_log is not None:
            self._request_log.reopen()
        for reloader in self._reloaders:
            reloader.reload()

    def apply(self, settings: Settings) -> None:
        """Go by `settings` from now on, as far as a running gateway can. Raises `ConfigError`, with nothing changed."""
        _check_replicas(settings)
        replicas = replica_specs(settings, self._environment)
        new_policy = policy(settings, self._random) if settings.policy != self.settings.policy else None
        names = model_names(settings)
        before, self.settings = self.settings, settings
        if new_policy is not None:
            self.data_path.policy, self._sources.policy = new_policy, policy_name(settings.policy.name)
        self.name_models(names)
        self.data_path.apply(data_path_settings(settings))
        self.fleet.kv_throttle_ratio = settings.limits.kv_throttle
        self.membership.configure(replicas)
        if settings.log.level != before.log.level:
            configure_log(settings.log.level)
        if waiting := needs_restart(self._started_with, settings):
            log.warning("restart needed for what else has changed", keys=", ".join(waiting))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _check_replicas(settings: Settings) -> None:
    if not settings.replicas:
        raise ConfigError(
            "there is no replica to send requests to",
            hint="poise serve --replica http://host:8000, or poise demo to try it without one",
        )


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
        raise PortError(host, port, error, to_share=True) from None
