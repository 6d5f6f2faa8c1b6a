"""The metrics of each replica: its health, its load by its own account and by this gateway's."""

from collections.abc import Callable, Iterable, Sequence

from poise.admin.exposition import Family, Kind, Sample
from poise.core.replica import ReplicaState
from poise.fleet.replica import Replica
from poise.health.breaker import BreakerState

ReadReplicas = Callable[[Sequence[Replica], float], Iterable[Sample]]
"""Given all replicas and the time."""


def _replica(name: str, kind: Kind, text: str, read: Callable[[Replica], float | None]) -> tuple[Family, ReadReplicas]:
    family = Family(name, kind, text, ("replica",))
    return family, lambda replicas, now_s: [((replica.name,), read(replica)) for replica in replicas]


def _reading(name: str, kind: Kind, text: str, field: str) -> tuple[Family, ReadReplicas]:
    return _replica(name, kind, text, lambda replica: getattr(replica.reading, field, None))


def _states(replicas: Sequence[Replica], now_s: float) -> Iterable[Sample]:
    return [((r.name, state), int(r.state is state)) for r in replicas for state in ReplicaState]


def _breaker_states(replicas: Sequence[Replica], now_s: float) -> Iterable[Sample]:
    return [((r.name, s), int(r.condition.breaker.state is s)) for r in replicas for s in BreakerState]


def _breaker_moves(replicas: Sequence[Replica], now_s: float) -> Iterable[Sample]:
    return [((r.name, s), count) for r in replicas for s, count in r.condition.breaker.moves.items()]


def _outcomes(replicas: Sequence[Replica], now_s: float) -> Iterable[Sample]:
    return [((r.name, outcome), count) for r in replicas for outcome, count in r.outcomes.items()]


def _ages(replicas: Sequence[Replica], now_s: float) -> Iterable[Sample]:
    return [((r.name,), None if r.reading_at_s is None else now_s - r.reading_at_s) for r in replicas]


REPLICA_EXPORTS: tuple[tuple[Family, ReadReplicas], ...] = (
    (Family("poise_replica_state", Kind.GAUGE, "1 for the state the replica is in.", ("replica", "state")), _states),
    _replica(
        "poise_replica_up",
        Kind.GAUGE,
        "1 if nothing speaks against the replica's health: it is ready and its breaker closed.",
        lambda replica: int(replica.condition.good),
    ),
    (
        Family(
            "poise_replica_breaker_state",
            Kind.GAUGE,
            "1 for the state that the replica's breaker is in.",
            ("replica", "state"),
        ),
        _breaker_states,
    ),
    (
        Family(
            "poise_replica_breaker_transitions_total",
            Kind.COUNTER,
            "How often the replica's breaker went into a state.",
            ("replica", "state"),
        ),
        _breaker_moves,
    ),
    _replica(
        "poise_replica_available",
        Kind.GAUGE,
        "1 if the replica may be sent a request now: health, slow start, cap and KV throttle together.",
        lambda replica: int(replica.available),
    ),
    _replica(
        "poise_replica_slow_start_ratio",
        Kind.GAUGE,
        "Share of its peers' mean load that the replica may carry: below 1 after it has recovered.",
        lambda replica: replica.share,
    ),
    (
        Family(
            "poise_replica_requests_total",
            Kind.COUNTER,
            "Requests sent there that have ended, by outcome.",
            ("replica", "outcome"),
        ),
        _outcomes,
    ),
    _replica("poise_replica_in_flight", Kind.GAUGE, "Requests sent there that have not ended.", lambda r: r.in_flight),
    _replica(
        "poise_replica_prefill_tokens",
        Kind.GAUGE,
        "Prompt tokens sent there whose first output has not come.",
        lambda r: r.prefill_tokens,
    ),
    _reading("poise_replica_running", Kind.GAUGE, "Requests that the replica says it runs.", "running"),
    _reading("poise_replica_waiting", Kind.GAUGE, "Requests that the replica says wait in its queue.", "waiting"),
    _reading(
        "poise_replica_kv_usage_ratio",
        Kind.GAUGE,
        "KV blocks that running requests hold over all blocks, 0 to 1.",
        "kv_usage_ratio",
    ),
    _reading(
        "poise_replica_gpu_utilisation_ratio",
        Kind.GAUGE,
        "Mean utilisation of the replica's GPUs, 0 to 1.",
        "gpu_utilisation_ratio",
    ),
    _reading("poise_replica_kv_capacity_tokens", Kind.GAUGE, "Tokens that its KV cache holds.", "kv_capacity_tokens"),
    _reading(
        "poise_replica_prefix_query_tokens_total",
        Kind.COUNTER,
        "Prompt tokens that the replica looked up in its prefix cache.",
        "prefix_queries_tokens",
    ),
    _reading(
        "poise_replica_prefix_hit_tokens_total",
        Kind.COUNTER,
        "Prompt tokens that the replica found in its prefix cache.",
        "prefix_hits_tokens",
    ),
    _replica(
        "poise_replica_prefix_hit_ratio",
        Kind.GAUGE,
        "Share of recent prompt tokens that were found in its prefix cache; half of its weight is the last 30 s.",
        lambda r: r.hit_rate.ratio if r.reading is not None else None,
    ),
    _reading("poise_replica_preemptions_total", Kind.COUNTER, "Requests that lost their KV blocks.", "preemptions"),
    _replica(
        "poise_replica_restarts_total", Kind.COUNTER, "Restarts of the engine that were seen.", lambda r: r.restarts
    ),
    _replica(
        "poise_replica_metrics_usable",
        Kind.GAUGE,
        "1 if there is a reading of the replica's metrics that is not stale.",
        lambda r: int(r.reading is not None),
    ),
    (
        Family(
            "poise_replica_metrics_age_seconds", Kind.GAUGE, "Age of the last reading of its metrics.", ("replica",)
        ),
        _ages,
    ),
    _replica(
        "poise_replica_failed_scrapes",
        Kind.GAUGE,
        "Scrapes of its metrics that failed since the last that did not.",
        lambda r: r.failed_scrapes,
    ),
)
