"""What vLLM serves beside OpenAI's API: Anthropic's messages, tokens."""

import json
from typing import Any

import pytest
from vllm_http import call
from vllm_servers import CONTEXT_TOKENS, Gateway

pytestmark = pytest.mark.vllm

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Which way is north?"}]
ASK: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}


def test_messages(gateway: Gateway) -> None:
    answer = call(gateway.url + "/v1/messages", ASK)
    assert answer.status == 200
    assert answer.json()["content"][0]["text"]
    assert answer.json()["stop_reason"] == "max_tokens"
    assert answer.json()["usage"]["output_tokens"] == 8


def test_streamed_messages_end_with_their_own_last_event(gateway: Gateway) -> None:
    plain = call(gateway.url + "/v1/messages", ASK).json()
    events = [json.loads(data) for data in call(gateway.url + "/v1/messages", {**ASK, "stream": True}).events()]
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == plain["content"][0]["text"]


def test_refused_messages_have_anthropics_shape(gateway: Gateway) -> None:
    too_long = [{"role": "user", "content": "word " * (CONTEXT_TOKENS + 1000)}]
    answer = call(gateway.url + "/v1/messages", {**ASK, "messages": too_long})
    assert answer.status == 400
    assert answer.json()["type"] == "error"
    assert str(CONTEXT_TOKENS) in answer.json()["error"]["message"]


def test_tokens_are_counted_alike_on_every_route(gateway: Gateway) -> None:
    chat = {"model": "tiny", "messages": MESSAGES}
    tokens = call(gateway.url + "/tokenize", chat).json()
    counted = call(gateway.url + "/v1/messages/count_tokens", chat).json()
    used = call(gateway.url + "/v1/messages", ASK).json()["usage"]
    assert tokens["count"] == len(tokens["tokens"]) == counted["input_tokens"] == used["input_tokens"]


def test_tokens_turn_back_into_their_text(gateway: Gateway) -> None:
    text = "north, 北, שָׁלוֹם 🧭"
    tokens = call(gateway.url + "/tokenize", {"model": "tiny", "prompt": text, "add_special_tokens": False}).json()[
        "tokens"
    ]
    assert call(gateway.url + "/detokenize", {"model": "tiny", "tokens": tokens}).json()["prompt"] == text
