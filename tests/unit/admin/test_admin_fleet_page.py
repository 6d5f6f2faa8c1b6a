"""`/api/fleet`: the fields that the interface promises, null where nothing is known."""

import json

from poise.admin.fleet_page import fleet_page
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet

PROMISED = {
    "name",
    "url",
    "model",
    "state",
    "in_flight",
    "running",
    "waiting",
    "queue",
    "kv_usage_ratio",
    "metrics_age_s",
}


def fleet_with(*names: str) -> Fleet:
    fleet = Fleet()
    for name in names:
        fleet.join(
            ReplicaSpec(name, parse_replica_url(f"http://{name}:8000@1"), gpus=(0, 1), labels={"bucket": "long"})
        )
    return fleet


def test_what_is_unknown_is_null() -> None:
    (replica,) = json.loads(json.dumps(fleet_page(fleet_with("a"), 5.0)))["replicas"]
    assert replica.keys() > PROMISED
    for field in ("model", "running", "waiting", "kv_usage_ratio", "metrics_age_s", "request_time_s"):
        assert replica[field] is None
    assert (replica["url"], replica["state"], replica["breaker"]) == ("http://a:8000@1", "ready", "closed")
    assert (replica["gpus"], replica["labels"]) == ([0, 1], {"bucket": "long"})


def test_readings_and_counts_are_those_of_the_fleet() -> None:
    fleet = fleet_with("a", "b")
    a, b = fleet
    fleet.serves(a, ("m1", "m2"))
    fleet.scrape_began(a)
    fleet.scraped(a, LoadReading(running=3, waiting=2, kv_usage_ratio=0.5, kv_capacity_tokens=1000), 4.0)
    fleet.scrape_failed(b, "refused")
    fleet.settle(fleet.dispatch(0, RequestFacts(), 4.0), Outcome.FAILED, 5.0)
    fleet.dispatch(0, RequestFacts(prompt_tokens=9), 4.0)
    first, second = fleet_page(fleet, 5.5)["replicas"]
    assert (first["model"], first["models"]) == ("m1", ("m1", "m2"))
    assert (first["running"], first["waiting"], first["kv_usage_ratio"], first["metrics_age_s"]) == (3, 2, 0.5, 1.5)
    assert (first["in_flight"], first["queue"], first["prefill_tokens"]) == (1, 3, 9)
    assert first["requests"] == {"completed": 0, "caller_error": 0, "cancelled": 0, "refused": 0, "failed": 1}
    assert (second["scrape_error"], second["running"]) == ("refused", None)
