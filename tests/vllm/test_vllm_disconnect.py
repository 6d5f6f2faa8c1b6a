"""A client that leaves frees its slot: seen in vLLM's own counts.

An answer of LONG_ANSWER_TOKENS takes a replica six seconds or more: a count that falls within one fell by an abort.
"""

from typing import Any

import openai
import pytest
from openai import OpenAI
from vllm_http import LONG_ANSWER_TOKENS, held_streams, wait_until
from vllm_servers import SLOTS, OpenGateway, Replica

pytestmark = pytest.mark.vllm

ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Go on"}],
    "max_tokens": LONG_ANSWER_TOKENS,
}
NEVER_STOP = {"ignore_eos": True}


def test_leaving_a_stream_aborts_it(client: OpenAI, replicas: tuple[Replica, Replica]) -> None:
    stream = client.chat.completions.create(**ASK, stream=True, extra_body=NEVER_STOP)
    next(iter(stream))
    assert sum(replica.running() for replica in replicas) == 1
    stream.close()
    wait_until(lambda: sum(replica.requests() for replica in replicas) == 0, 1, "nothing runs")


def test_giving_up_on_a_plain_answer_aborts_it(client: OpenAI, replicas: tuple[Replica, Replica]) -> None:
    before = sum(replica.metric("generation_tokens_total") for replica in replicas)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(**ASK, extra_body=NEVER_STOP)
    wait_until(lambda: sum(replica.requests() for replica in replicas) == 0, 1, "nothing runs")
    assert 0 < sum(replica.metric("generation_tokens_total") for replica in replicas) - before < LONG_ANSWER_TOKENS


def test_a_stream_that_waits_in_the_replicas_queue_leaves_it_with_its_client(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway
) -> None:
    replica = replicas[0]
    with open_gateway(replica) as gateway, held_streams(gateway.url, SLOTS):
        wait_until(lambda: replica.running() == SLOTS, 2, "every slot is taken")
        with held_streams(gateway.url, 3):
            wait_until(lambda: replica.waiting() == 3, 2, "three are waiting")
        wait_until(lambda: replica.waiting() == 0, 1, "nobody waits")
        assert replica.running() == SLOTS
