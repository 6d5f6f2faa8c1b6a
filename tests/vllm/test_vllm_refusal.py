"""vLLM at its admission limit: what it refuses is answered by another replica, or refused with an error status.

One request too many is refused with 503. In a burst, vLLM 0.32 has often sent 200 already when it refuses a stream:
chat and completions then carry an error event with code 503 and `[DONE]`, messages an error event without the code,
and responses are cut off after `response.in_progress`. No client shall see any of these.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from openai import OpenAI
from vllm_http import Answer, call, held_streams, wait_until
from vllm_servers import QUEUE_LIMIT, SLOTS, OpenGateway, Replica

BURST = 40
MESSAGES: list[Any] = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True)
class Streamed:
    """A route that streams, and what the last event of a whole stream holds."""

    path: str
    request: dict[str, Any] = field(repr=False)
    last_event: str
    refusal_statuses: frozenset[int] = frozenset({503})


UNNAMED = frozenset({500, 502, 503})  # where vLLM's stream does not say why it ends
ROUTES = (
    Streamed("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 60}, "[DONE]"),
    Streamed("/v1/completions", {"prompt": "Hello", "max_tokens": 60}, "[DONE]"),
    Streamed("/v1/messages", {"messages": MESSAGES, "max_tokens": 60}, '"message_stop"', UNNAMED),
    Streamed("/v1/responses", {"input": "Hello", "max_output_tokens": 60}, '"response.completed"', UNNAMED),
)
pytestmark = pytest.mark.vllm
every_route = pytest.mark.parametrize("route", ROUTES, ids=[route.path for route in ROUTES])


def burst(url: str, route: Streamed) -> list[Answer]:
    """Ask for BURST streams at once."""
    body = {"model": "tiny", "stream": True, **route.request}
    with ThreadPoolExecutor(BURST) as pool:
        return list(pool.map(lambda _: call(url + route.path, body), range(BURST)))


def is_whole(answer: Answer, route: Streamed) -> bool:
    """Whether `answer` is a stream with its proper end and without an error."""
    if answer.status != 200 or answer.is_cut or route.last_event not in answer.events()[-1]:
        return False
    return not any(json.loads(data).get("error") for data in answer.events() if data != "[DONE]")


def is_refusal(answer: Answer, route: Streamed) -> bool:
    return answer.status in route.refusal_statuses and bool(answer.json()["error"]["message"])


def refusals(replica: Replica) -> int:
    return int(replica.metric("admission_rejections_total"))


@pytest.fixture
def busy(replicas: tuple[Replica, Replica]) -> Iterator[Replica]:
    """The replica that has a limit, with one slot left: it answers so slowly that a burst must go over the limit."""
    with held_streams(replicas[1].url, SLOTS - 1):
        wait_until(lambda: replicas[1].load() == (SLOTS - 1, 0), 5, "one slot is left")
        yield replicas[1]


@every_route
def test_vllm_breaks_streams_that_it_has_begun(busy: Replica, route: Streamed) -> None:
    """What the tests below rest on."""
    answers = burst(busy.url, route)
    assert any(answer.status == 200 and not is_whole(answer, route) for answer in answers)


@every_route
def test_what_one_replica_refuses_another_answers(
    replicas: tuple[Replica, Replica], busy: Replica, open_gateway: OpenGateway, route: Streamed
) -> None:
    before = refusals(busy)
    with open_gateway(*replicas, policy="round_robin") as gateway:
        answers = burst(gateway.url, route)
    refused = [answer for answer in answers if not is_whole(answer, route)]
    assert all(is_refusal(answer, route) for answer in refused)
    assert len(refused) < refusals(busy) - before


@every_route
def test_with_nobody_else_a_refusal_is_no_success(busy: Replica, open_gateway: OpenGateway, route: Streamed) -> None:
    before = refusals(busy)
    with open_gateway(busy) as gateway:
        answers = burst(gateway.url, route)
    assert all(is_whole(answer, route) or is_refusal(answer, route) for answer in answers)
    assert refusals(busy) > before


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_the_client_raises_for_a_full_replica(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway, stream: bool
) -> None:
    full = replicas[1]
    with (
        open_gateway(full) as gateway,
        OpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0) as client,
        held_streams(full.url, QUEUE_LIMIT),
    ):
        wait_until(lambda: sum(full.load()) == QUEUE_LIMIT, 5, "the replica is full")
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    assert caught.value.status_code == 503
