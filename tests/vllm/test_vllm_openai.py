"""The official client of OpenAI's API against real vLLM, through the gateway."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from vllm_http import Answer, call
from vllm_servers import CONTEXT_TOKENS, Gateway, Replica

pytestmark = pytest.mark.vllm

# Shorter than a block and greedy: no cached prefix and no chance changes the answer, so every replica gives the same.
GREEDY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Which way is north?"}],
    "max_tokens": 24,
    "temperature": 0,
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Lima", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
# A random model writes hundreds of blanks between the words of its JSON, and greedily it never stops.
FORCED_TOOL: Any = {
    **GREEDY,
    "temperature": 1,
    "max_tokens": 4000,
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
}
TOO_LONG = [{"role": "user", "content": "word " * (CONTEXT_TOKENS + 1000)}]
REFUSED = {
    "unknown model": ({**GREEDY, "model": "nope"}, openai.NotFoundError),
    "prompt too long": ({**GREEDY, "messages": TOO_LONG}, openai.BadRequestError),
    "temperature below 0": ({**GREEDY, "temperature": -1}, openai.BadRequestError),
    "no messages": ({**GREEDY, "messages": []}, openai.BadRequestError),
    "messages of the wrong type": ({**GREEDY, "messages": "hello"}, openai.BadRequestError),
}


def without_identity(answer: Answer) -> dict[str, Any]:
    """What is the same in two answers to the same request."""
    return {name: value for name, value in answer.json().items() if name not in ("id", "created")}


def test_chat_is_answered_as_the_replica_answers(gateway: Gateway, replicas: tuple[Replica, Replica]) -> None:
    direct = call(replicas[0].url + "/v1/chat/completions", GREEDY)
    through = call(gateway.url + "/v1/chat/completions", GREEDY)
    assert through.status == direct.status == 200
    assert without_identity(through) == without_identity(direct)
    assert through.headers["x-poise-replica"] in ("r1", "r2")


def test_streamed_chat_carries_the_text_of_the_plain_one_and_its_usage(client: OpenAI) -> None:
    plain = client.chat.completions.create(**GREEDY)
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert (
        "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        == plain.choices[0].message.content
    )
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [24]


def test_several_choices_in_one_stream_all_end(client: OpenAI) -> None:
    chunks = client.chat.completions.create(**{**GREEDY, "temperature": 1}, n=3, stream=True)
    ended = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(ended) == [0, 1, 2]


def test_completions_of_one_prompt_and_of_several(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    plain = client.completions.create(prompt="def area(", **fields)
    several = client.completions.create(prompt=["def area(", "import "], **fields)
    streamed = client.completions.create(prompt="def area(", stream=True, **fields)
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 8
    assert [choice.index for choice in several.choices] == [0, 1]
    assert "".join(chunk.choices[0].text for chunk in streamed) == plain.choices[0].text


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_tools_that_are_not_called_leave_an_ordinary_answer(client: OpenAI, choice: Any) -> None:
    answer = client.chat.completions.create(**GREEDY, tools=[TOOL], tool_choice=choice)
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def test_a_forced_tool_is_called(client: OpenAI) -> None:
    answer = client.chat.completions.create(**FORCED_TOOL)
    [tool_call] = answer.choices[0].message.tool_calls or []
    assert tool_call.function.name == "weather"
    assert json.loads(tool_call.function.arguments)["city"] in ("Lima", "Oslo")


def test_a_forced_tool_is_called_in_a_stream(client: OpenAI) -> None:
    chunks = client.chat.completions.create(**FORCED_TOOL, stream=True)
    calls = [tool_call for chunk in chunks for choice in chunk.choices for tool_call in choice.delta.tool_calls or []]
    assert [piece.function.name for piece in calls if piece.function.name] == ["weather"]
    assert json.loads("".join(piece.function.arguments or "" for piece in calls))["city"] in ("Lima", "Oslo")


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(model="tiny", input="Which way is north?", max_output_tokens=8)
    assert answer.output_text
    assert answer.usage is not None
    assert answer.usage.output_tokens == 8


def test_streamed_responses_end_without_done_and_that_is_no_failure(client: OpenAI) -> None:
    events = list(client.responses.create(model="tiny", input="Which way is north?", max_output_tokens=8, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert not [event for event in events if event.type == "error"]


def test_a_model_that_two_replicas_serve_is_listed_once(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_raises_the_class_of_its_status(client: OpenAI, name: str, stream: bool) -> None:
    fields, error_class = REFUSED[name]
    with pytest.raises(error_class) as caught:
        client.chat.completions.create(**fields, stream=stream)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
def test_a_replicas_refusal_is_passed_on_unaltered(
    gateway: Gateway, replicas: tuple[Replica, Replica], stream: bool
) -> None:
    fields = {**GREEDY, "messages": TOO_LONG, "stream": stream}
    direct = call(replicas[0].url + "/v1/chat/completions", fields)
    through = call(gateway.url + "/v1/chat/completions", fields)
    assert (through.status, through.body) == (direct.status, direct.body)
    assert direct.status == 400


@pytest.mark.parametrize("sent", [{"x-request-id": "from-the-caller"}, {}], ids=["kept", "made"])
def test_the_request_id_is_the_replicas_too(gateway: Gateway, sent: dict[str, str]) -> None:
    answer = call(gateway.url + "/v1/chat/completions", GREEDY, sent)
    assert answer.json()["id"] == "chatcmpl-" + answer.headers["x-request-id"]
    assert answer.headers["x-request-id"] == sent.get("x-request-id", answer.headers["x-request-id"])
