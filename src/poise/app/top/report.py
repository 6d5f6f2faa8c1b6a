"""What happened between two looks at a gateway's admin port. Pure: pages in, a report out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from poise.wire.prometheus import parse_labels, parse_value, sample_pattern

_PREFIX = "poise_"
_GAUGES = ("in_flight", "queue_length", "client_connections", "comfort_band_replicas_ratio", "kv_usage_spread_ratio")
_FIRST_OUTPUT, _END_TO_END = "first_output_seconds_bucket", "end_to_end_seconds_bucket"
_PATTERN = sample_pattern(
    f"{_PREFIX}{name}" for name in ("info", "requests_total", "retries_total", _FIRST_OUTPUT, _END_TO_END, *_GAUGES)
)
BROKEN = ("failed", "refused")
"""Outcomes that are errors of the service."""
SHOWN = (
    "name", "state", "breaker", "available", "running", "waiting", "kv_usage_ratio", "in_flight", "prefix_hit_ratio",
    "restarts", "metrics_age_s",
)  # fmt: skip

K = TypeVar("K")
Buckets = Mapping[float, float]
"""How many values were at or below each bound."""


@dataclass(slots=True)
class Look:
    """The two pages as they were at one moment. Sums over models and routes."""

    at_s: float
    replicas: Sequence[Mapping[str, Any]]
    gauges: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, float] = field(default_factory=dict)
    retries: float = 0.0
    first_output: dict[float, float] = field(default_factory=dict)
    end_to_end: dict[float, float] = field(default_factory=dict)
    policy: str = ""
    version: str = ""


def read_look(at_s: float, fleet: Mapping[str, Any], page: bytes) -> Look:
    """What `/api/fleet` and `/metrics` say."""
    look = Look(at_s, fleet["replicas"])
    for match in _PATTERN.finditer(b"\n" + page):
        name, value = match[1].decode().removeprefix(_PREFIX), parse_value(match[3])
        if value is not None:
            labels = {key.decode(): text.decode() for key, text in parse_labels(match[2] or b"").items()}
            _take(look, name, labels, value)
    return look


def _take(look: Look, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "info":
        look.policy, look.version = labels["policy"], labels["version"]
    elif name == "requests_total":
        outcome = labels["outcome"]
        look.outcomes[outcome] = look.outcomes.get(outcome, 0.0) + value
    elif name == "retries_total":
        look.retries += value
    elif name in (_FIRST_OUTPUT, _END_TO_END):
        buckets = look.first_output if name == _FIRST_OUTPUT else look.end_to_end
        bound = float(labels["le"])
        buckets[bound] = buckets.get(bound, 0.0) + value
    else:
        look.gauges[name] = look.gauges.get(name, 0.0) + value


def report(before: Look, now: Look) -> dict[str, Any]:
    """Rates and times between two looks, and the state at the second. What is unknown is None."""
    elapsed_s = max(now.at_s - before.at_s, 1e-9)
    outcomes = _grown(before.outcomes, now.outcomes)
    first_output, end_to_end = _grown(before.first_output, now.first_output), _grown(before.end_to_end, now.end_to_end)
    earlier = {replica["name"]: replica for replica in before.replicas}
    return {
        "gateway": {
            "version": now.version,
            "policy": now.policy,
            "requests_per_s": sum(outcomes.values()) / elapsed_s,
            "errors_per_s": _errors(outcomes) / elapsed_s,
            "retries_per_s": _grown({"": before.retries}, {"": now.retries})[""] / elapsed_s,
            "first_output_p50_s": quantile(first_output, 0.5),
            "first_output_p99_s": quantile(first_output, 0.99),
            "end_to_end_p50_s": quantile(end_to_end, 0.5),
            "end_to_end_p99_s": quantile(end_to_end, 0.99),
            **{name: now.gauges.get(name) for name in _GAUGES},
        },
        "replicas": [_replica(earlier.get(replica["name"], {}), replica, elapsed_s) for replica in now.replicas],
    }


def _replica(before: Mapping[str, Any], now: Mapping[str, Any], elapsed_s: float) -> dict[str, Any]:
    outcomes = _grown(before.get("requests", now["requests"]), now["requests"])
    return {name: now.get(name) for name in SHOWN} | {
        "requests_per_s": sum(outcomes.values()) / elapsed_s,
        "errors_per_s": _errors(outcomes) / elapsed_s,
    }


def _errors(outcomes: Mapping[str, float]) -> float:
    return sum(outcomes.get(outcome, 0.0) for outcome in BROKEN)


def _grown(before: Mapping[K, float], now: Mapping[K, float]) -> dict[K, float]:
    """What each counter has gained; if one fell, all have begun anew."""
    gained = {key: count - before.get(key, 0.0) for key, count in now.items()}
    return dict(now) if any(gain < 0 for gain in gained.values()) else gained


def quantile(buckets: Buckets, share: float) -> float | None:
    """The value that `share` of all lie below, as Prometheus estimates it: evenly spread within a bucket.

    None if there are no values. What lies above all bounds counts as the highest bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for bound in bounds:
        count = buckets[bound]
        if count >= wanted and count > below:
            return lower if bound == float("inf") else lower + (bound - lower) * (wanted - below) / (count - below)
        lower, below = (lower if bound == float("inf") else bound), count
    return lower
