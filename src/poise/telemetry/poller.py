"""Keeps the fleet told of load and models, in the background: nothing here is ever waited for by a request."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from poise.core.clock import monotonic_s
from poise.core.errors import ConfigError
from poise.core.replica import ReplicaAddress
from poise.core.tasks import TaskGroupOwner
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica
from poise.health.settings import HealthSettings
from poise.telemetry.catalog import ModelCatalog
from poise.telemetry.conditions import Conditions
from poise.telemetry.readers import GPU_METRICS, REPLICA, GpuReader, HealthReader, MetricsReader, ModelsReader
from poise.telemetry.settings import TelemetrySettings
from poise.telemetry.watch import Page, Schedule
from poise.telemetry.watches import Watches, page_at

log = structlog.get_logger()

MODELS_RETRY_S = 1.0
"""Pause after a look at a model list that failed: an engine that has just started must not wait long for its models."""

MISSING_PAUSE_S = 10.0
"""How seldom a service that has no metrics page is asked for it, in the end."""


class Poller:
    """Watches every replica of `fleet`, those that join later too, from `start` to `close`.

    `catalog` is the merged model list.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: TelemetrySettings,
        health: HealthSettings | None = None,
        clock: Callable[[], float] = monotonic_s,
    ) -> None:
        self.catalog = ModelCatalog()
        self._fleet = fleet
        self._interval_s = settings.interval_s
        self._clock = clock
        self._tasks = TaskGroupOwner()
        self._conditions = Conditions()
        self._generation = -1
        interval_s, models_interval_s, now_s = settings.interval_s, settings.models_interval_s, clock()
        turns = Schedule(interval_s, settings.timeout_s, interval_s, interval_s, now_s, clock, MISSING_PAUSE_S)
        models_turns = Schedule(models_interval_s, settings.models_timeout_s, 0.0, MODELS_RETRY_S, now_s, clock)
        health = health or HealthSettings()
        interval_s = health.interval_s
        probes = Schedule(interval_s, health.timeout_s, interval_s, interval_s / 2, now_s, clock)
        self._gpu_page_of: dict[str, Page] = {}
        self._gpus = Watches(turns, self._tasks, self._new_gpu_reader)
        self._metrics = Watches(turns, self._tasks, self._new_metrics_reader)
        self._health = Watches(probes, self._tasks, self._new_health_reader)
        self._models = Watches(models_turns, self._tasks, self._new_models_reader)

    async def start(self) -> None:
        """Begin to watch. Returns at once: no replica is waited for."""
        self._follow_fleet()
        self._tasks.spawn(self._run(), name="telemetry")

    async def close(self) -> None:
        """End all watches and their connections."""
        await self._tasks.close()
        await asyncio.sleep(0)  # lets the transports that were dropped close their sockets

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                self._look_at_fleet()
            except Exception:  # all that is known of replicas depends on this loop
                log.exception("the fleet could not be followed")

    def _look_at_fleet(self) -> None:
        self._fleet.advance(self._clock())
        for replica in self._fleet:
            self._conditions.report(replica.name, REPLICA, _illness(replica))
        if self._fleet.generation != self._generation:
            self._follow_fleet()

    # -- which pages are watched

    def _follow_fleet(self) -> None:
        servers: dict[ReplicaAddress, list[Replica]] = {}
        gpu_pages: dict[Page, list[Replica]] = {}
        for replica in self._fleet:
            servers.setdefault(_server(replica), []).append(replica)
            gpu_page = self._gpu_page(replica)
            if gpu_page is not None:
                gpu_pages.setdefault(gpu_page, []).append(replica)
        self._conditions.forget_all_but({replica.name for replica in self._fleet})
        self._gpus.follow(gpu_pages)
        self._models.follow({_models_page(server): replicas for server, replicas in servers.items()})
        self._metrics.follow({Page(server, "/metrics"): replicas for server, replicas in servers.items()})
        self._health.follow({Page(server, "/health"): replicas for server, replicas in servers.items()})
        self._gpu_page_of = {replica.name: page for page, replicas in gpu_pages.items() for replica in replicas}
        self._show_models()
        self._generation = self._fleet.generation

    def _gpu_page(self, replica: Replica) -> Page | None:
        if replica.spec.gpu_metrics_url is None:
            return None
        try:
            return page_at(replica.spec.gpu_metrics_url)
        except ConfigError as error:
            self._conditions.report(replica.name, GPU_METRICS, str(error))
            return None

    def _new_gpu_reader(self, page: Page) -> GpuReader:
        return GpuReader(self._conditions, self._clock)

    def _new_metrics_reader(self, page: Page) -> MetricsReader:
        def came_back() -> None:
            self._models.look_soon(_models_page(page.address))

        return MetricsReader(self._fleet, self._conditions, self._clock, self._gpu_utilisation, came_back)

    def _new_health_reader(self, page: Page) -> HealthReader:
        return HealthReader(self._fleet, self._conditions, self._clock)

    def _new_models_reader(self, page: Page) -> ModelsReader:
        return ModelsReader(self._conditions, self._show_models)

    # -- what one page says that concerns more than its own replicas

    def _gpu_utilisation(self, replica: Replica) -> float | None:
        page = self._gpu_page_of.get(replica.name)
        reader = None if page is None else self._gpus.find(page)
        return None if reader is None else reader.utilisation(replica, self._fleet.stale_s)

    def _show_models(self) -> None:
        lists = []
        for replica in self._fleet:
            reader = self._models.find(_models_page(_server(replica)))
            if reader is None or not reader.entries:
                continue
            self._fleet.serves(replica, tuple(entry.id for entry in reader.entries))
            if reader.answers:
                lists.append([entry for entry in reader.entries if replica.spec.model in (None, entry.id)])
        self.catalog.show(lists)


def _illness(replica: Replica) -> str | None:
    condition = replica.condition
    return None if condition.good else f"it is {condition.state}, its breaker {condition.breaker.state}"


def _server(replica: Replica) -> ReplicaAddress:
    """The ranks of one server share its pages."""
    return replace(replica.spec.address, rank=None)


def _models_page(server: ReplicaAddress) -> Page:
    return Page(server, "/v1/models")
