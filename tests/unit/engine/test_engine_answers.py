"""Every answer's stream, put together, says what its plain form says."""

import json
import re

import pytest

from poise.engine.answers import Answer, ChatAnswer, CompletionAnswer, Usage
from poise.engine.answers_typed import MessagesAnswer, ResponsesAnswer
from poise.engine.errors import busy
from poise.engine.requests import Wanted

USAGE = Usage(prompt_tokens=8, completion_tokens=3, cached_tokens=4)
TEXT = b" one two map"


def make(kind: type[Answer], *, stream: bool = True, include_usage: bool = True) -> Answer:
    wanted = Wanted(
        model="m",
        prompt=b"prompt of eight tokens 32 bytes.",
        stream=stream,
        include_usage=include_usage,
        max_tokens=3,
        ignore_eos=True,
        priority=0,
        seed=0,
        cache_salt=None,
        rank=None,
    )
    return kind(wanted, 'a "model"', "id-1", 123)


def whole_stream(answer: Answer, finish: str = "length") -> list[dict[str, object]]:
    middle = b"".join(answer.token_before + TEXT[at : at + 4] + answer.token_after for at in (0, 4))
    stream = answer.opening + answer.first() + middle + answer.last(TEXT, TEXT[8:], finish, USAGE)
    assert stream.endswith(b"\n\n")
    found = re.findall(rb"^data: (.*)$", stream, re.MULTILINE)
    return [json.loads(data) for data in found if data != b"[DONE]"]


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_chat_stream_adds_up(finish: str) -> None:
    chunks = whole_stream(make(ChatAnswer), finish)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]  # type: ignore[index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"]["content"] for choice in choices).encode() == TEXT
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, finish]
    plain = json.loads(make(ChatAnswer, stream=False).plain(TEXT, finish, USAGE))
    assert plain["choices"][0]["message"]["content"].encode() == TEXT
    assert plain["choices"][0]["finish_reason"] == finish
    assert chunks[-1]["usage"] == plain["usage"]
    assert plain["usage"]["total_tokens"] == 11
    assert plain["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert {chunk["id"] for chunk in chunks} == {plain["id"]} == {"chatcmpl-id-1"}
    assert {chunk["model"] for chunk in chunks} == {'a "model"'}


def test_a_completion_stream_adds_up() -> None:
    chunks = whole_stream(make(CompletionAnswer))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]).encode() == TEXT  # type: ignore[index]
    plain = json.loads(make(CompletionAnswer, stream=False).plain(TEXT, "length", USAGE))
    assert plain["choices"][0]["text"].encode() == TEXT
    assert chunks[-1]["usage"] == plain["usage"]
    assert plain["id"] == "cmpl-id-1"


@pytest.mark.parametrize("kind", [ChatAnswer, CompletionAnswer])
def test_usage_is_sent_only_if_asked_for(kind: type[Answer]) -> None:
    assert all("usage" not in chunk for chunk in whole_stream(make(kind, include_usage=False)))


@pytest.mark.parametrize(("finish", "status"), [("length", "incomplete"), ("stop", "completed")])
def test_a_responses_stream_ends_with_the_plain_answer(finish: str, status: str) -> None:
    events = whole_stream(make(ResponsesAnswer), finish)
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(map(str, deltas)).encode() == TEXT
    plain = json.loads(make(ResponsesAnswer, stream=False).plain(TEXT, finish, USAGE))
    assert events[-1]["response"] == plain
    assert plain["status"] == status
    assert plain["output"][0]["content"][0]["text"].encode() == TEXT
    assert events[0]["type"] == "response.created"


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_tokens"), ("stop", "end_turn")])
def test_a_messages_stream_adds_up(finish: str, reason: str) -> None:
    events = whole_stream(make(MessagesAnswer), finish)
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]  # type: ignore[index]
    assert "".join(deltas).encode() == TEXT
    plain = json.loads(make(MessagesAnswer, stream=False).plain(TEXT, finish, USAGE))
    assert plain["content"][0]["text"].encode() == TEXT
    ended = next(event for event in events if event["type"] == "message_delta")
    assert ended["delta"]["stop_reason"] == plain["stop_reason"] == reason  # type: ignore[index]
    assert ended["usage"] == plain["usage"]


def test_errors_inside_streams_have_the_apis_shape() -> None:
    openai_events = make(ChatAnswer).error_events(busy())
    assert openai_events.endswith(b"\n\ndata: [DONE]\n\n")
    assert json.loads(openai_events.split(b"\n")[0].removeprefix(b"data: "))["error"]["code"] == 503
    anthropic_events = make(MessagesAnswer).error_events(busy())
    assert anthropic_events.startswith(b"event: error\ndata: ")
    assert json.loads(anthropic_events.split(b"data: ")[1])["type"] == "error"
