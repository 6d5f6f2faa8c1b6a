"""Every metric that the gateway exports, and where its value comes from. Labels are few and bounded: never what a
caller made up."""

import resource
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poise import __version__
from poise.admin.admission_metrics import ADMISSION_EXPORTS, Read
from poise.admin.exposition import Family, Kind, Sample, escaped, write_histograms, write_samples
from poise.admin.replica_metrics import REPLICA_EXPORTS, ReadReplicas
from poise.admission.key_limits import KeyLimits
from poise.admission.queue import CentralQueue
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica
from poise.proxy.counters import Counters
from poise.proxy.request_log import RequestLog
from poise.proxy.times import ModelTimes
from poise.proxy.trail import Trails
from poise.report.histogram import Histogram


@dataclass(slots=True)
class Sources:
    """What the page is made from. `policy` is the name in use."""

    fleet: Fleet
    counters: Counters
    policy: str
    log: RequestLog | None = None
    trails: Trails = field(default_factory=lambda: Trails(0))
    queue: CentralQueue = field(default_factory=lambda: CentralQueue(0))
    keys: KeyLimits = field(default_factory=KeyLimits)

    @property
    def replicas(self) -> list[Replica]:
        """Each name once, as no metric may be there twice."""
        return list(self.fleet.by_name().values())


def _gateway(name: str, kind: Kind, text: str, read: Callable[[Counters], float]) -> "Export":
    family = Family(name, kind, text)
    return Export(family, lambda sources, now_s: [((), read(sources.counters))])


def _counted(name: str, text: str, labels: tuple[str, ...], read: Callable[[Counters], Iterable[Sample]]) -> "Export":
    return Export(Family(name, Kind.COUNTER, text, labels), lambda sources, now_s: read(sources.counters))


@dataclass(frozen=True, slots=True)
class Export:
    """A family and how its samples are read."""

    family: Family
    read: Callable[[Sources, float], Iterable[Sample]]


def _admission(family: Family, read: Read) -> Export:
    return Export(family, lambda sources, now_s: read(sources.queue, sources.keys))


def _of_replicas(family: Family, read: ReadReplicas) -> Export:
    return Export(family, lambda sources, now_s: read(sources.replicas, now_s))


def _in_comfort_band(sources: Sources, now_s: float) -> Iterable[Sample]:
    usages = _kv_usages(sources.fleet)
    least, most = COMFORT_BAND
    return [((), sum(least <= usage <= most for usage in usages) / len(usages) if usages else None)]


def _kv_spread(sources: Sources, now_s: float) -> Iterable[Sample]:
    usages = _kv_usages(sources.fleet)
    return [((), max(usages) - min(usages) if usages else None)]


def _kv_usages(fleet: Fleet) -> list[float]:
    readings = [replica.reading for replica in fleet if not replica.leaving]
    return [r.kv_usage_ratio for r in readings if r is not None and r.kv_usage_ratio is not None]


def _lost_lines(sources: Sources, now_s: float) -> Iterable[Sample]:
    return [((), 0 if sources.log is None else sources.log.lost_lines)]


def _lost_traces(sources: Sources, now_s: float) -> Iterable[Sample]:
    tracer = sources.trails.tracer
    return [((), None if tracer is None else tracer.lost)]


def _cpu_seconds(sources: Sources, now_s: float) -> Iterable[Sample]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return [((), used.ru_utime + used.ru_stime)]


def _resident_bytes(sources: Sources, now_s: float) -> Iterable[Sample]:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return [((), None)]
    return [((), pages * resource.getpagesize())]


COMFORT_BAND = (0.6, 0.8)
"""KV usage below which capacity is wasted, and above which cached prefixes are evicted before they are used again."""

EXPORTS: tuple[Export, ...] = (
    Export(
        Family("poise_info", Kind.GAUGE, "Always 1; which version runs, with which policy.", ("version", "policy")),
        lambda sources, now_s: [((__version__, sources.policy), 1)],
    ),
    _counted(
        "poise_requests_total",
        "Requests ended, by route and outcome.",
        ("route", "outcome"),
        lambda counters: list(counters.requests.items()),
    ),
    _counted(
        "poise_refusals_total",
        "Requests that the gateway answered itself with an error, by error code.",
        ("code",),
        lambda counters: [((code,), count) for code, count in counters.refusals.items()],
    ),
    _counted(
        "poise_retries_total",
        "Requests sent to another replica, by what was wrong with the first.",
        ("reason",),
        lambda counters: [((reason,), count) for reason, count in counters.retries.items()],
    ),
    _counted(
        "poise_model_fallbacks_total",
        "Requests answered by another model because no replica of theirs could be sent them.",
        ("model", "other"),
        lambda counters: [((escaped(a), escaped(b)), count) for (a, b), count in counters.fallbacks.items()],
    ),
    _counted(
        "poise_idempotent_replays_total",
        "Requests answered with the answer of another with their idempotency key: one that ran, or a stored one.",
        ("how",),
        lambda counters: [((how,), count) for how, count in counters.replays.items()],
    ),
    *(_admission(family, read) for family, read in ADMISSION_EXPORTS),
    _gateway(
        "poise_queue_sheds_total",
        Kind.COUNTER,
        "Requests that waited and gave way to others because the queue was full.",
        lambda c: c.sheds,
    ),
    _gateway("poise_in_flight", Kind.GAUGE, "Requests that have not ended.", lambda c: c.in_flight),
    _gateway("poise_client_connections", Kind.GAUGE, "Connections of callers.", lambda c: c.client_connections),
    _gateway("poise_buffered_bytes", Kind.GAUGE, "Bodies held in memory, all together.", lambda c: c.buffered_bytes),
    _gateway(
        "poise_stale_connections_total",
        Kind.COUNTER,
        "Kept connections to replicas that turned out to be closed when used again.",
        lambda c: c.stale_connections,
    ),
    _gateway("poise_prompt_tokens_total", Kind.COUNTER, "Prompt tokens, from usage.", lambda c: c.prompt_tokens),
    _gateway(
        "poise_prompt_cached_tokens_total",
        Kind.COUNTER,
        "Prompt tokens that the replicas had cached, from usage.",
        lambda c: c.cached_tokens,
    ),
    _gateway("poise_output_tokens_total", Kind.COUNTER, "Output tokens, from usage.", lambda c: c.output_tokens),
    Export(
        Family(
            "poise_comfort_band_replicas_ratio",
            Kind.GAUGE,
            "Share of the replicas whose KV usage is 0.6 to 0.8, of those that say it.",
        ),
        _in_comfort_band,
    ),
    Export(
        Family("poise_kv_usage_spread_ratio", Kind.GAUGE, "Highest less lowest KV usage of all replicas."), _kv_spread
    ),
    Export(
        Family("poise_log_lines_lost_total", Kind.COUNTER, "Lines of the request log that could not be written."),
        _lost_lines,
    ),
    Export(
        Family("poise_traces_lost_total", Kind.COUNTER, "Requests whose traces could not be delivered."), _lost_traces
    ),
    *(_of_replicas(family, read) for family, read in REPLICA_EXPORTS),
    Export(Family("process_cpu_seconds_total", Kind.COUNTER, "CPU time of the gateway process."), _cpu_seconds),
    Export(Family("process_resident_memory_bytes", Kind.GAUGE, "Memory of the gateway process."), _resident_bytes),
)


def _times(name: str, text: str, read: Callable[[ModelTimes], Histogram]) -> "HistogramExport":
    return HistogramExport(
        Family(name, Kind.HISTOGRAM, text, ("model",)),
        lambda counters: [((escaped(model),), read(times)) for model, times in counters.times],
    )


@dataclass(frozen=True, slots=True)
class HistogramExport:
    """A family of histograms, and how they are found."""

    family: Family
    read: Callable[[Counters], Iterable[tuple[Sequence[str], Histogram]]]


HISTOGRAMS: tuple[HistogramExport, ...] = (
    _times(
        "poise_first_output_seconds",
        "Time from a request to the first output of its answer (TTFT).",
        lambda times: times.first_output_s,
    ),
    _times(
        "poise_output_token_seconds",
        "Mean time of the output tokens after the first (TPOT) of a complete stream, tokens from usage.",
        lambda times: times.output_token_s,
    ),
    _times(
        "poise_end_to_end_seconds",
        "Time from a request to the end of its complete answer.",
        lambda times: times.end_to_end_s,
    ),
    HistogramExport(
        Family("poise_queue_wait_seconds", Kind.HISTOGRAM, "Time in the queue of requests that were let through."),
        lambda counters: [((), counters.queue_wait_s)],
    ),
    HistogramExport(
        Family("poise_decision_seconds", Kind.HISTOGRAM, "Time that choosing a replica took."),
        lambda counters: [((), counters.decision_s)],
    ),
)


def families() -> list[Family]:
    """Every metric, in the order of the page."""
    return [export.family for export in EXPORTS] + [export.family for export in HISTOGRAMS]


def metrics_page(sources: Sources, now_s: float) -> bytes:
    """The page that Prometheus reads."""
    lines: list[str] = []
    for export in EXPORTS:
        lines += write_samples(export.family, export.read(sources, now_s))
    for histograms in HISTOGRAMS:
        lines += write_histograms(histograms.family, histograms.read(sources.counters))
    return "".join(lines).encode()
