"""The metrics page, as Prometheus' own parser reads it."""

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from poise import __version__
from poise.admin.exposition import Family, Kind, write_histograms, write_samples
from poise.admin.metrics import Sources, families, metrics_page
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet
from poise.proxy.counters import Counters
from poise.proxy.request_log import RequestLine, RequestLog
from poise.proxy.times import MAX_MODELS, OTHER
from poise.report.histogram import Histogram

READING = LoadReading(
    running=3,
    waiting=2,
    kv_usage_ratio=0.5,
    gpu_utilisation_ratio=0.25,
    kv_capacity_tokens=1000,
    prefix_queries_tokens=100,
    prefix_hits_tokens=40,
    preemptions=7,
)


def fleet_of(count: int, reading: LoadReading | None = None) -> Fleet:
    fleet = Fleet()
    for number in range(count):
        replica = fleet.join(ReplicaSpec(f"r{number}", parse_replica_url(f"http://10.0.0.{number}:8000")))
        if reading is not None:
            fleet.scrape_began(replica)
            fleet.scraped(replica, reading, now_s=10.0)
    return fleet


def page_of(fleet: Fleet, counters: Counters | None = None, now_s: float = 10.0) -> dict[str, list[Sample]]:
    page = metrics_page(Sources(fleet, counters or Counters(), "soft_affinity"), now_s).decode()
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)
    return samples


def value(samples: list[Sample], **labels: str) -> float:
    (found,) = [sample.value for sample in samples if labels.items() <= sample.labels.items()]
    return float(found)


def test_a_reading_is_shown_replica_by_replica() -> None:
    page = page_of(fleet_of(2, READING), now_s=10.75)
    for name in ("r0", "r1"):
        assert value(page["poise_replica_running"], replica=name) == 3
        assert value(page["poise_replica_waiting"], replica=name) == 2
        assert value(page["poise_replica_kv_usage_ratio"], replica=name) == 0.5
        assert value(page["poise_replica_gpu_utilisation_ratio"], replica=name) == 0.25
        assert value(page["poise_replica_kv_capacity_tokens"], replica=name) == 1000
        assert value(page["poise_replica_prefix_query_tokens_total"], replica=name) == 100
        assert value(page["poise_replica_prefix_hit_tokens_total"], replica=name) == 40
        assert value(page["poise_replica_preemptions_total"], replica=name) == 7
        assert value(page["poise_replica_metrics_usable"], replica=name) == 1
        assert value(page["poise_replica_metrics_age_seconds"], replica=name) == 0.75


def test_what_is_unknown_is_left_out_not_zero() -> None:
    page = page_of(fleet_of(1))
    for name in ("running", "waiting", "kv_usage_ratio", "metrics_age_seconds", "preemptions_total"):
        assert f"poise_replica_{name}" not in page
    assert value(page["poise_replica_metrics_usable"], replica="r0") == 0


def test_a_stale_reading_is_unknown_again_but_its_age_is_shown() -> None:
    fleet = fleet_of(1, READING)
    fleet.advance(now_s=20.0)
    page = page_of(fleet, now_s=20.0)
    assert "poise_replica_kv_usage_ratio" not in page
    assert value(page["poise_replica_metrics_usable"], replica="r0") == 0
    assert value(page["poise_replica_metrics_age_seconds"], replica="r0") == 10


def test_a_replica_is_in_exactly_one_state() -> None:
    fleet = fleet_of(2)
    fleet.drain("r1")
    states = page_of(fleet)["poise_replica_state"]
    assert {(s.labels["replica"], s.labels["state"]) for s in states if s.value == 1} == {
        ("r0", "ready"),
        ("r1", "draining"),
    }
    assert len(states) == 2 * len(ReplicaState)


def test_requests_are_counted_where_they_went_and_how_they_ended() -> None:
    fleet = fleet_of(2)
    request = RequestFacts(prompt_tokens=100)
    for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED):
        fleet.settle(fleet.dispatch(1, request, 0.0), outcome, 1.0)
    fleet.dispatch(0, request, 0.0)
    page = page_of(fleet)
    ended = page["poise_replica_requests_total"]
    assert value(ended, replica="r1", outcome="completed") == 2
    assert value(ended, replica="r1", outcome="failed") == 1
    assert value(ended, replica="r0", outcome="completed") == 0
    assert value(page["poise_replica_in_flight"], replica="r0") == 1
    assert value(page["poise_replica_prefill_tokens"], replica="r0") == 100


def test_the_gateways_own_counts() -> None:
    counters = Counters()
    counters.requests[("chat", "completed")] = 4
    counters.refusals["no_replica"] = 2
    counters.retries["connect"] = 1
    counters.client_connections, counters.in_flight, counters.buffered_bytes = 9, 3, 12345
    counters.prompt_tokens, counters.output_tokens, counters.stale_connections = 70, 30, 5
    counters.cached_tokens = 20
    page = page_of(Fleet(), counters)
    assert value(page["poise_requests_total"], route="chat", outcome="completed") == 4
    assert value(page["poise_refusals_total"], code="no_replica") == 2
    assert value(page["poise_retries_total"], reason="connect") == 1
    for name, expected in (
        ("poise_client_connections", 9),
        ("poise_in_flight", 3),
        ("poise_buffered_bytes", 12345),
        ("poise_prompt_tokens_total", 70),
        ("poise_prompt_cached_tokens_total", 20),
        ("poise_output_tokens_total", 30),
        ("poise_stale_connections_total", 5),
    ):
        assert value(page[name]) == expected
    assert value(page["poise_info"], version=__version__, policy="soft_affinity") == 1
    assert value(page["process_cpu_seconds_total"]) > 0


def test_every_family_is_on_the_page_once_and_named_as_prometheus_asks() -> None:
    page = metrics_page(Sources(fleet_of(1, READING), Counters(), "random"), 10.0).decode()
    shown = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert shown == [family.name for family in families()]
    assert len(set(shown)) == len(shown)
    for family in families():
        assert family.name.startswith(("poise_", "process_"))
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 0.1, 1.0, 5.0, 99.0]])
def test_a_histogram_counts_at_or_below_each_bound(values: list[float]) -> None:
    histogram = Histogram([0.1, 1.0, 10.0])
    for observed in values:
        histogram.observe(observed)
    text = "".join(write_histograms(Family("h_seconds", Kind.HISTOGRAM, "Help."), [((), histogram)]))
    (family,) = text_string_to_metric_families(text)
    buckets = {float(s.labels["le"]): s.value for s in family.samples if s.name == "h_seconds_bucket"}
    bounds = [0.1, 1.0, 10.0, math.inf]
    assert buckets == {bound: sum(observed <= bound for observed in values) for bound in bounds}
    rest = {s.name: s.value for s in family.samples if s.name != "h_seconds_bucket"}
    assert rest == {"h_seconds_sum": pytest.approx(sum(values)), "h_seconds_count": len(values)}


@given(model=st.text(max_size=20), other=st.text(max_size=20))
def test_a_models_name_is_shown_as_it_is_whatever_it_holds(model: str, other: str) -> None:
    counters = Counters()
    served = {model, other}
    counters.times.follow(served)
    for number, name in enumerate(served):
        times = counters.times.of(name)
        for _ in range(number + 1):
            times.first_output_s.observe(0.2)
    counts = {
        sample.labels["model"]: sample.value
        for sample in page_of(Fleet(), counters)["poise_first_output_seconds_count"]
    }
    assert counts == {OTHER: counts[OTHER], **{name: number + 1 for number, name in enumerate(served) if name != OTHER}}


KV_USAGES = [None, 0.0, 0.59, 0.6, 0.7, 0.8, 0.81, 1.0]


@given(usages=st.lists(st.sampled_from(KV_USAGES), max_size=6))
def test_the_comfort_band_and_the_spread_are_those_of_the_known_usages(usages: list[float | None]) -> None:
    fleet = fleet_of(len(usages))
    for replica, usage in zip(fleet, usages, strict=True):
        fleet.scrape_began(replica)
        fleet.scraped(replica, LoadReading(kv_usage_ratio=usage), 10.0)
    page, known = page_of(fleet), [usage for usage in usages if usage is not None]
    if not known:
        assert "poise_comfort_band_replicas_ratio" not in page
        assert "poise_kv_usage_spread_ratio" not in page
        return
    in_band = sum(usage in (0.6, 0.7, 0.8) for usage in known)
    assert value(page["poise_comfort_band_replicas_ratio"]) == pytest.approx(in_band / len(known))
    assert value(page["poise_kv_usage_spread_ratio"]) == pytest.approx(max(known) - min(known))


def test_the_recent_hit_rate_is_shown_while_the_reading_is_believed() -> None:
    fleet = fleet_of(1, READING)
    fleet.scrape_began(fleet.at(0))
    fleet.scraped(fleet.at(0), replace(READING, prefix_queries_tokens=200, prefix_hits_tokens=115), 11.0)
    assert value(page_of(fleet)["poise_replica_prefix_hit_ratio"], replica="r0") == pytest.approx(0.75)
    fleet.advance(now_s=20.0)
    assert "poise_replica_prefix_hit_ratio" not in page_of(fleet)


def test_lines_that_a_disk_could_not_take_are_counted() -> None:
    log = RequestLog("/dev/full")
    log.write(RequestLine("id", "chat", "completed", 200, "r1", "home", 1, "m", True, None, 0.0, 0.1, 0.2, 3, 2, 4))
    log.close()
    page = metrics_page(Sources(Fleet(), Counters(), "random", log), 10.0).decode()
    assert "\npoise_log_lines_lost_total 1\n" in page


def test_labels_and_values_must_match_in_number() -> None:
    family = Family("x", Kind.GAUGE, "Help.", ("a", "b"))
    with pytest.raises(TypeError):
        list(write_samples(family, [(("only one",), 1)]))


@pytest.mark.alone
def test_the_largest_page_takes_a_few_milliseconds() -> None:
    """It is built in the loop that forwards every stream. Measured 6 ms on a slow core; the best of several runs here,
    so that a busy machine does not fail it."""
    counters, models = Counters(), [f"model-{number}" for number in range(MAX_MODELS)]
    counters.times.follow(models)
    for model in models:
        counters.times.of(model)
    counters.requests.update((f"route-{number}", outcome) for number in range(20) for outcome in Outcome)
    sources = Sources(fleet_of(64, READING), counters, "soft_affinity")
    durations_s = []
    for _ in range(10):
        started_s = time.process_time()
        metrics_page(sources, 10.0)
        durations_s.append(time.process_time() - started_s)
    assert min(durations_s) < 0.03


def test_a_name_that_one_replica_has_and_another_leaves_with_is_there_once() -> None:
    fleet = Fleet()
    spec = ReplicaSpec("r1", parse_replica_url("http://h:1"))
    fleet.join(spec)
    fleet.dispatch(0, RequestFacts(), 0.0)
    fleet.leave("r1")
    assert value(page_of(fleet)["poise_replica_state"], replica="r1", state="draining") == 1
    fleet.join(spec)
    assert [sample.value for sample in page_of(fleet)["poise_replica_in_flight"]] == [0]
