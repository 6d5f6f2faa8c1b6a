"""Connections to a server that closes idle ones on its own account."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from vllm_http import call, chat_body
from vllm_servers import Gateway

pytestmark = pytest.mark.vllm

REPLICA_CLOSES_IDLE_S = 5.0
OFFSETS_S = (-0.15, -0.05, -0.02, 0.0, 0.02, 0.05, 0.15)


def test_no_request_is_lost_on_a_connection_that_vllm_is_closing(gateway: Gateway) -> None:
    def ask_again_after(pause_s: float) -> tuple[int, int]:
        body = chat_body("Again", 100)
        first = call(gateway.url + "/v1/chat/completions", body)
        time.sleep(pause_s)
        return first.status, call(gateway.url + "/v1/chat/completions", body).status

    with ThreadPoolExecutor(len(OFFSETS_S)) as pool:
        pauses_s = [REPLICA_CLOSES_IDLE_S + offset_s for offset_s in OFFSETS_S]
        assert set(pool.map(ask_again_after, pauses_s)) == {(200, 200)}
