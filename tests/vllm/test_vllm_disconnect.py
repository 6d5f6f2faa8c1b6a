"""A client that leaves frees its slot: seen in vLLM's own counts.

An answer of LONG_ANSWER_TOKENS takes a replica far longer than SOON_S: a count that falls within it fell by an abort.
"""

from concurrent.futures import ThreadPoolExecutor
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
SOON_S = 2
NEVER_STOP = {"ignore_eos": True}


def all_are_idle(replicas: tuple[Replica, Replica]) -> bool:
    return all(replica.is_idle() for replica in replicas)


def test_leaving_a_stream_aborts_it(client: OpenAI, replicas: tuple[Replica, Replica]) -> None:
    stream = client.chat.completions.create(**ASK, stream=True, extra_body=NEVER_STOP)
    next(iter(stream))
    assert not all_are_idle(replicas)
    stream.close()
    wait_until(lambda: all_are_idle(replicas), SOON_S, "nothing runs")


def test_giving_up_on_a_plain_answer_aborts_it(client: OpenAI, replicas: tuple[Replica, Replica]) -> None:
    impatient = client.with_options(timeout=2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: impatient.chat.completions.create(**ASK, extra_body=NEVER_STOP))
        wait_until(lambda: not all_are_idle(replicas), 2, "it runs")
        with pytest.raises(openai.APITimeoutError):
            asked.result()
    wait_until(lambda: all_are_idle(replicas), SOON_S, "nothing runs")


def test_streams_that_wait_in_the_replicas_queue_leave_it_with_their_clients(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway
) -> None:
    replica = replicas[0]
    with open_gateway(replica) as gateway, held_streams(gateway.url, SLOTS):
        wait_until(lambda: replica.load() == (SLOTS, 0), SOON_S, "every slot is taken")
        with held_streams(gateway.url, 3):
            wait_until(lambda: replica.load() == (SLOTS, 3), SOON_S, "three are waiting")
        wait_until(lambda: replica.load() == (SLOTS, 0), SOON_S, "nobody waits")
