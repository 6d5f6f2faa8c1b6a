"""Chunks of any legal shape, known or not, are passed on as they are; usage is counted once, wherever it stands."""

import pytest

from poise.core.request import Outcome
from support.apis import DONE, MESSAGES, RESPONSES, USAGE, chat_event, data
from support.gateway import gateway
from support.http_bytes import answer, request
from support.scripted_replica import ScriptedReplica
from support.scripts import answers, streams, writes
from support.transcript import assert_same_bytes

ARGUMENTS = "".join(f'\\"field_{number}\\": \\"{"v" * 190}\\", ' for number in range(40))
FRAGMENTS = [ARGUMENTS[start : start + 205] for start in range(0, len(ARGUMENTS), 205)]


def tool_call(arguments: str) -> bytes:
    """One fragment of a tool call's arguments."""
    return chat_event({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}, unknown={"a": [1, None]})


STREAM = (
    chat_event({"role": "assistant"}, unknown=1),
    data({"id": "chatcmpl-1", "object": "chat.completion.chunk", "unknown": None}),
    chat_event({"reasoning_content": "hm"}, unknown="x"),
    chat_event({"reasoning_content": " 嗯"}, unknown="x"),
    *map(tool_call, FRAGMENTS),
    chat_event({}, "tool_calls", unknown=True),
    chat_event(None, usage=USAGE, unknown=2.5),
    DONE,
)


async def test_a_stream_of_every_shape() -> None:
    async with ScriptedReplica(streams(*STREAM)) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=b'{"model":"m","stream":true}'))
        assert_same_bytes(got.body, b"".join(STREAM))
        assert (poise.counters.prompt_tokens, poise.counters.output_tokens) == (11, 7)
        assert poise.outcomes == {Outcome.COMPLETED: 1}


async def test_usage_in_every_chunk_is_counted_once() -> None:
    continuous = [
        chat_event({"content": "a"}, usage={**USAGE, "completion_tokens": 1}),
        chat_event({"content": "b"}, "stop", usage={**USAGE, "completion_tokens": 6}),
        chat_event(None, usage=USAGE),
        DONE,
    ]
    async with ScriptedReplica(streams(*continuous)) as replica, gateway(replica) as poise:
        await poise.ask(request(body=b'{"model":"m","stream":true}'))
        assert (poise.counters.prompt_tokens, poise.counters.output_tokens) == (11, 7)


ODD = {
    "an array": b"data: [1,2]\n\n",
    "a number": b"data: 1\n\n",
    "null": b"data: null\n\n",
    "a text": b'data: "x"\n\n',
    "nothing": b"data:\n\n",
    "choices of null": b'data: {"choices":null}\n\n',
    "choices of numbers": b'data: {"choices":[1]}\n\n',
    "an error of null": b'data: {"error":null,"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n',
    "usage of null": b'data: {"usage":null,"choices":[]}\n\n',
    "usage of text": b'data: {"usage":"many","choices":[]}\n\n',
    "not UTF-8": b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n',
    "deep": b"data: " + b"[" * 5000 + b"]" * 5000 + b"\n\n",
    "a huge number": b'data: {"usage":{"prompt_tokens":' + b"9" * 400 + b'},"choices":[]}\n\n',
    "several data lines": b'data: {"choices":\ndata: []}\n\n',
    "id and retry": b'id: 7\nretry: 100\ndata: {"choices":[]}\n\n',
    "no data": b"event: note\n\n",
    "a field without a colon": b"data\n\n",
    "the word error in the text": chat_event({"content": '{"error":{"message":"no"}} [DONE] "finish_reason":"abort"'}),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("shape", ODD)
async def test_odd_events(shape: str, first: bool) -> None:
    ending = chat_event({"content": ""}, "stop")
    text = chat_event({"content": "x"})
    events = (ODD[shape], text, ending, DONE) if first else (text, ODD[shape], ending, DONE)
    async with ScriptedReplica(streams(*events)) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=b'{"model":"m","stream":true}'))
        assert_same_bytes(got.body, b"".join(events))
        assert poise.outcomes == {Outcome.COMPLETED: 1}


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES], ids=lambda api: api.name)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_usage_of_the_other_apis(api, stream: bool) -> None:
    script = streams(api=api) if stream else answers(200, api.plain)
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        await poise.ask(request(api.path, api.request_body(stream=stream)))
        assert (poise.counters.prompt_tokens, poise.counters.output_tokens) == (11, 7)


PLAIN = (
    b"[]", b"1", b"null", b'"x"', b"{}", b'{"choices":null}', b'{"choices":[null]}',
    b'{"choices":[{"finish_reason":1}]}', b'{"usage":1}', b'{"stop_reason":{}}', b"", b"not JSON", b"\xff",
    b"[" * 50_000,
)  # fmt: skip


@pytest.mark.parametrize("body", PLAIN, ids=lambda body: repr(body[:40]))
async def test_odd_plain_answers(body: bytes) -> None:
    async with ScriptedReplica(writes(answer(200, body))) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=b'{"model":"m"}'))
        assert (got.status, bytes(got.body)) == (200, body)
        assert poise.outcomes == {Outcome.COMPLETED: 1}
