"""What `poise top` makes of two looks: rates that survive restarts, and quantiles as Prometheus estimates them."""

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.admin.fleet_page import fleet_page
from poise.admin.metrics import Sources, metrics_page
from poise.app.top.report import BROKEN, Look, quantile, read_look, report
from poise.app.top.run import gateway_lines
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.core.request import Outcome
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters
from poise.report.histogram import LATENCY_BUCKETS_S, Histogram


def look(fleet: Fleet, counters: Counters, at_s: float) -> Look:
    return read_look(at_s, fleet_page(fleet, at_s), metrics_page(Sources(fleet, counters, "load_score"), at_s))


def test_a_report_says_what_happened_in_between_over_models_and_routes() -> None:
    fleet, counters = Fleet(), Counters()
    for name in ("a", "b"):
        fleet.join(ReplicaSpec(name, parse_replica_url(f"http://{name}:1")))
    a, b = fleet.at(0), fleet.at(1)
    fleet.scrape_began(a)
    fleet.scraped(a, LoadReading(running=3, waiting=2, kv_usage_ratio=0.7), 0.0)
    counters.requests["chat", "completed"] = 100
    counters.times.follow(("m", "n"))
    counters.times.of("m").first_output_s.observe(60.0)
    before = look(fleet, counters, 10.0)
    counters.requests["chat", "completed"] += 6
    counters.requests["completions", "failed"] += 2
    counters.requests["chat", "cancelled"] += 2
    counters.retries["lost"] += 4
    a.outcomes[Outcome.COMPLETED] += 6
    b.outcomes[Outcome.FAILED] += 2
    for model in ("m", "n", "unknown"):
        counters.times.of(model).first_output_s.observe(0.2)
    seen = report(before, look(fleet, counters, 12.0))
    gateway, (row_a, row_b) = seen["gateway"], seen["replicas"]
    assert (gateway["requests_per_s"], gateway["errors_per_s"], gateway["retries_per_s"]) == (5.0, 1.0, 2.0)
    assert gateway["policy"] == "load_score"
    assert 0.1 <= gateway["first_output_p99_s"] <= 0.25
    assert gateway["end_to_end_p50_s"] is None
    assert gateway["comfort_band_replicas_ratio"] == 1
    assert (row_a["requests_per_s"], row_a["errors_per_s"]) == (3.0, 0.0)
    assert (row_b["requests_per_s"], row_b["errors_per_s"]) == (1.0, 1.0)
    assert (row_a["running"], row_a["waiting"], row_a["kv_usage_ratio"], row_a["breaker"]) == (3, 2, 0.7, "closed")
    assert (row_b["running"], row_b["kv_usage_ratio"]) == (None, None)
    assert "5.0 requests/s, 1.0 errors/s, 2.0 retries/s" in gateway_lines(gateway)


counts = st.dictionaries(st.sampled_from([str(outcome) for outcome in Outcome]), st.integers(0, 1000))


def replica(requests: dict[str, int]) -> dict[str, Any]:
    return {"name": "r", "requests": requests}


@given(before=counts, now=counts)
def test_no_rate_is_below_0_whatever_restarted(before: dict[str, int], now: dict[str, int]) -> None:
    looks = [
        replace(Look(float(at_s), [replica(requests)]), outcomes={k: float(v) for k, v in requests.items()})
        for at_s, requests in enumerate((before, now))
    ]
    seen = report(*looks)
    for rates in (seen["gateway"], seen["replicas"][0]):
        assert 0 <= rates["errors_per_s"] <= rates["requests_per_s"] <= sum(now.values())
    if all(now.get(key, 0) >= count for key, count in before.items()):
        assert seen["gateway"]["requests_per_s"] == sum(now.values()) - sum(before.values())
        errors = sum(now.get(key, 0) - before.get(key, 0) for key in BROKEN)
        assert seen["gateway"]["errors_per_s"] == errors


def test_a_replica_that_joined_in_between_has_no_rate_yet() -> None:
    seen = report(Look(0.0, []), Look(1.0, [replica({"completed": 50})]))
    assert seen["replicas"][0]["requests_per_s"] == 0


@given(values=st.lists(st.floats(0, 400), min_size=1), share=st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value_it_stands_for(values: list[float], share: float) -> None:
    histogram = Histogram(LATENCY_BUCKETS_S)
    for value in values:
        histogram.observe(value)
    bounds = [*LATENCY_BUCKETS_S, math.inf]
    totals = [float(sum(histogram.counts[: number + 1])) for number in range(len(bounds))]
    shuffled = list(zip(bounds, totals, strict=True))
    Random(0).shuffle(shuffled)
    found = quantile(dict(shuffled), share)
    exact = sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
    upper = next(bound for bound in bounds if exact <= bound)
    lower = max([0.0, *(bound for bound in LATENCY_BUCKETS_S if bound < exact)])
    assert found is not None
    if math.isinf(upper):
        assert found == LATENCY_BUCKETS_S[-1]
    else:
        assert lower - 1e-9 <= found <= upper + 1e-9


@pytest.mark.parametrize("buckets", [{}, {1.0: 0.0, math.inf: 0.0}])
def test_no_values_have_no_quantile(buckets: dict[float, float]) -> None:
    assert quantile(buckets, 0.5) is None
