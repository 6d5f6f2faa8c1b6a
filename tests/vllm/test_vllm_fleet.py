"""What the gateway's poller reads from real metrics pages."""

import pytest
from vllm_http import held_streams, wait_until
from vllm_servers import SLOTS, Gateway, OpenGateway, Replica

pytestmark = pytest.mark.vllm

EACH = SLOTS + 2
FULL = (EACH, SLOTS, 2)  # in flight, running, waiting


def loads(gateway: Gateway) -> list[tuple[int, int, int]]:
    return [(replica["in_flight"], replica["running"], replica["waiting"]) for replica in gateway.fleet()]


def test_the_fleet_shows_the_load_and_then_none(replicas: tuple[Replica, Replica], open_gateway: OpenGateway) -> None:
    with open_gateway(*replicas, policy="least_requests") as gateway:
        with held_streams(gateway.url, 2 * EACH):
            wait_until(lambda: loads(gateway) == [FULL] * 2, 5, "every slot is taken, two are waiting at each")
            for replica, shown in zip(replicas, gateway.fleet(), strict=True):
                assert (shown["name"], shown["url"], shown["state"]) == (replica.name, replica.url, "ready")
                assert shown["model"] == "tiny"
                assert 0 <= shown["metrics_age_s"] < 2
                # Usage only grows while the same streams go on, and this page is read after the gateway's.
                assert 0 < shown["kv_usage_ratio"] <= replica.metric("kv_cache_usage_perc") < 1
        wait_until(lambda: loads(gateway) == [(0, 0, 0)] * 2, 5, "nothing in flight, running or waiting")
        assert [shown["kv_usage_ratio"] for shown in gateway.fleet()] == [0, 0]
