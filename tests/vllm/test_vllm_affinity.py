"""A conversation's second turn finds its history in a replica's prefix cache, or computes it again."""

from functools import partial
from typing import Any

import pytest
from vllm_http import Answer, call, wait_until
from vllm_servers import BLOCK_TOKENS, Gateway, OpenGateway, Replica

pytestmark = pytest.mark.vllm

# An odd number: with round robin, the second turn of each then falls to the other one of two replicas.
CONVERSATIONS = 7


class Conversation:
    """Two turns that share no block of tokens with any other conversation's."""

    def __init__(self, name: str, headers: dict[str, str]) -> None:
        self.headers = headers
        facts = ", ".join(f"{name} fact {number}" for number in range(40))
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": f"{name}: {facts}"}]

    def turn(self, gateway: Gateway) -> Answer:
        """Ask, keep the answer in the history, and add the next question to it."""
        body = {"model": "tiny", "messages": self.messages, "max_tokens": 8}
        answer = call(gateway.url + "/v1/chat/completions", body, self.headers)
        assert answer.status == 200
        self.messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        return answer


def cached_tokens(answer: Answer) -> int:
    count: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def hits(replicas: tuple[Replica, Replica]) -> dict[str, float]:
    """Tokens of prompts that each replica has found in its prefix cache so far."""
    return {replica.name: replica.metric("prefix_cache_hits_total") for replica in replicas}


def hits_are(replicas: tuple[Replica, Replica], expected: dict[str, float]) -> bool:
    return hits(replicas) == expected


@pytest.mark.parametrize("named", [True, False], ids=["session header", "no header"])
def test_soft_affinity_finds_each_history_where_it_was_computed(
    replicas: tuple[Replica, Replica], open_gateway: OpenGateway, named: bool
) -> None:
    names = [f"affine {named} {number}" for number in range(CONVERSATIONS)]
    conversations = [Conversation(name, {"x-session-id": name} if named else {}) for name in names]
    with open_gateway(*replicas, policy="soft_affinity") as gateway:
        first = [conversation.turn(gateway) for conversation in conversations]
        for conversation, before in zip(conversations, first, strict=True):
            home = before.headers["x-poise-replica"]
            expected = hits(replicas)
            second = conversation.turn(gateway)
            assert second.headers["x-poise-replica"] == home
            full_blocks = before.json()["usage"]["prompt_tokens"] // BLOCK_TOKENS
            assert cached_tokens(second) >= full_blocks * BLOCK_TOKENS > 0
            expected[home] += cached_tokens(second)
            wait_until(partial(hits_are, replicas, expected), 1, f"hits are {expected}")


def test_round_robin_computes_each_history_again(replicas: tuple[Replica, Replica], open_gateway: OpenGateway) -> None:
    conversations = [Conversation(f"dealt {number}", {"x-session-id": str(number)}) for number in range(CONVERSATIONS)]
    before = hits(replicas)
    with open_gateway(*replicas, policy="round_robin") as gateway:
        for _turn in (1, 2):
            answers = [conversation.turn(gateway) for conversation in conversations]
            assert {answer.headers["x-poise-replica"] for answer in answers} == {"r1", "r2"}
            assert [cached_tokens(answer) for answer in answers] == [0] * CONVERSATIONS
    assert hits(replicas) == before
