"""The fleet as `/api/fleet` shows it."""

from typing import Any

from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica


def fleet_page(fleet: Fleet, now_s: float) -> dict[str, Any]:
    """All replicas and what is known of each. Unknown is null."""
    return {"replicas": [_replica(replica, now_s) for replica in fleet]}


def _replica(replica: Replica, now_s: float) -> dict[str, Any]:
    spec, reading = replica.spec, replica.reading
    return {
        "name": replica.name,
        "url": spec.address.url,
        "model": replica.models[0] if replica.models else None,
        "models": replica.models,
        "gpus": spec.gpus,
        "labels": dict(spec.labels),
        "source": spec.source,
        "state": replica.state,
        "breaker": replica.condition.breaker.state,
        "available": replica.available,
        "slow_start_ratio": replica.share,
        "in_flight": replica.in_flight,
        "prefill_tokens": replica.prefill_tokens,
        "running": reading and reading.running,
        "waiting": reading and reading.waiting,
        "queue": replica.queue,
        "kv_usage_ratio": reading and reading.kv_usage_ratio,
        "kv_capacity_tokens": reading and reading.kv_capacity_tokens,
        "gpu_utilisation_ratio": reading and reading.gpu_utilisation_ratio,
        "prefix_queries_tokens": reading and reading.prefix_queries_tokens,
        "prefix_hits_tokens": reading and reading.prefix_hits_tokens,
        "prefix_hit_ratio": replica.hit_rate.ratio if reading is not None else None,
        "request_time_s": replica.mean_request_time_s,
        "metrics_age_s": None if replica.reading_at_s is None else round(now_s - replica.reading_at_s, 3),
        "scrape_error": replica.scrape_error,
        "restarts": replica.restarts,
        "requests": {str(outcome): count for outcome, count in replica.outcomes.items()},
    }
