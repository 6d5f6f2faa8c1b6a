"""What becomes of the three pages that are watched: engine metrics, model lists, and the utilisation of GPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from poise.core.errors import PoiseError
from poise.core.reading import LoadReading
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica
from poise.health.probes import Probe
from poise.telemetry.conditions import Conditions
from poise.telemetry.http_get import GetError
from poise.wire.gpu_metrics import mean_utilisation, read_gpu_page
from poise.wire.metrics import EnginePage, EnginePageReader
from poise.wire.models import ModelEntry, read_models
from poise.wire.prometheus import MetricsError

FAILURES_TO_HIDE = 3
"""Looks at a model list that fail in a row before the server is left out of the gateway's own list."""
EXPECTED = ("running", "waiting", "kv_usage_ratio")
"""Figures without which placement by load is partly blind."""

METRICS, FIGURES, GPU_METRICS, MODELS = "metrics page", "some load figures", "gpu metrics page", "model list"
HEALTH, REPLICA = "health page", "replica"


class GpuReader:
    """Utilisation of the GPUs on one exporter's page, which several `replicas` may share."""

    def __init__(self, conditions: Conditions, clock: Callable[[], float]) -> None:
        self.replicas: Sequence[Replica] = ()
        self._conditions = conditions
        self._clock = clock
        self._by_gpu: Mapping[int, float] = {}
        self._read_at_s = -float("inf")

    def began(self) -> None:
        """See `PageReader.began`."""

    def read(self, page: bytes) -> None:
        """See `PageReader.read`."""
        self._by_gpu, self._read_at_s = read_gpu_page(page), self._clock()

    def failed(self, error: PoiseError) -> None:
        """See `PageReader.failed`."""
        for replica in self.replicas:
            self._conditions.report(replica.name, GPU_METRICS, str(error))

    def utilisation(self, replica: Replica, stale_s: float) -> float | None:
        """Mean over the replica's GPUs, 0..1; None if the page was last read longer than `stale_s` ago."""
        if self._clock() - self._read_at_s > stale_s:
            return None
        try:
            ratio = mean_utilisation(self._by_gpu, replica.spec.gpus)
        except MetricsError as error:
            self._conditions.report(replica.name, GPU_METRICS, str(error))
            return None
        self._conditions.report(replica.name, GPU_METRICS, None)
        return ratio


class MetricsReader:
    """One server's metrics page: its reading goes to the fleet, for each of the `replicas` that are its ranks.

    `gpu_utilisation` is asked for a replica's. `came_back` is called when the page is read again after it could not be.
    """

    def __init__(
        self,
        fleet: Fleet,
        conditions: Conditions,
        clock: Callable[[], float],
        gpu_utilisation: Callable[[Replica], float | None],
        came_back: Callable[[], None],
    ) -> None:
        self.replicas: Sequence[Replica] = ()
        self._fleet = fleet
        self._conditions = conditions
        self._clock = clock
        self._gpu_utilisation = gpu_utilisation
        self._came_back = came_back
        self._good = True
        self._page_reader = EnginePageReader()

    def began(self) -> None:
        """See `PageReader.began`."""
        for replica in self._present():
            self._fleet.scrape_began(replica)

    def read(self, page: bytes) -> None:
        """See `PageReader.read`."""
        engine_page = self._page_reader.read(page)
        if not self._good:
            self._good = True
            self._came_back()
        for replica in self._present():
            self._read_for(replica, engine_page)

    def failed(self, error: PoiseError) -> None:
        """See `PageReader.failed`."""
        self._good = False
        for replica in self._present():
            self._fail(replica, error)

    def _read_for(self, replica: Replica, page: EnginePage) -> None:
        try:
            reading = page.reading(replica.spec.address.rank)
        except MetricsError as error:
            self._fail(replica, error)
            return
        gpu = self._gpu_utilisation(replica)
        if gpu is not None:
            reading = replace(reading, gpu_utilisation_ratio=gpu)
        self._fleet.scraped(replica, reading, self._clock())
        self._conditions.report(replica.name, METRICS, None)
        self._conditions.report(replica.name, FIGURES, _missing(page.engine.engine, reading))

    def _fail(self, replica: Replica, error: PoiseError) -> None:
        self._fleet.scrape_failed(replica, str(error))
        if isinstance(error, GetError) and error.refused:
            self._fleet.probed(replica, Probe.REFUSED, self._clock())
        self._conditions.report(replica.name, METRICS, str(error))

    def _present(self) -> list[Replica]:
        """A replica may have left since the fleet was last looked at."""
        return [replica for replica in self.replicas if self._fleet.holds(replica)]


class HealthReader:
    """One server's health page, which is about all of its ranks."""

    def __init__(self, fleet: Fleet, conditions: Conditions, clock: Callable[[], float]) -> None:
        self.replicas: Sequence[Replica] = ()
        self._fleet = fleet
        self._conditions = conditions
        self._clock = clock

    def began(self) -> None:
        """See `PageReader.began`."""

    def read(self, page: bytes) -> None:
        """See `PageReader.read`."""
        self._probed(Probe.WELL, None)

    def failed(self, error: PoiseError) -> None:
        """See `PageReader.failed`. A server without such a page, or that asks for a key, lives."""
        if isinstance(error, GetError) and error.exhausted:
            return  # the metrics page says it
        status = error.status if isinstance(error, GetError) else None
        if status is not None and status < 500:
            self._probed(Probe.WELL, None)
        else:
            refused = isinstance(error, GetError) and error.refused
            self._probed(Probe.REFUSED if refused else Probe.MISSED, str(error))

    def _probed(self, probe: int, problem: str | None) -> None:
        for replica in self.replicas:
            self._fleet.probed(replica, probe, self._clock())
            self._conditions.report(replica.name, HEALTH, problem)


class ModelsReader:
    """One server's model list. `changed` is called when it says something else than before."""

    def __init__(self, conditions: Conditions, changed: Callable[[], None]) -> None:
        self.replicas: Sequence[Replica] = ()
        self.entries: tuple[ModelEntry, ...] = ()
        """The last list that was read."""
        self._conditions = conditions
        self._changed = changed
        self._failures = FAILURES_TO_HIDE

    @property
    def answers(self) -> bool:
        """Whether the server is believed to answer still."""
        return self._failures < FAILURES_TO_HIDE

    def began(self) -> None:
        """See `PageReader.began`."""

    def read(self, page: bytes) -> None:
        """See `PageReader.read`."""
        before = self.answers, self.entries
        self.entries = read_models(page)
        self._failures = 0
        for replica in self.replicas:
            self._conditions.report(replica.name, MODELS, None)
        if before != (True, self.entries):
            self._changed()

    def failed(self, error: PoiseError) -> None:
        """See `PageReader.failed`."""
        self._failures += 1
        for replica in self.replicas:
            self._conditions.report(replica.name, MODELS, str(error))
        if self._failures == FAILURES_TO_HIDE:
            self._changed()


def _missing(engine: str, reading: LoadReading) -> str | None:
    missing = [name for name in EXPECTED if getattr(reading, name) is None]
    return f"{engine} says nothing of {', '.join(missing)}" if missing else None
