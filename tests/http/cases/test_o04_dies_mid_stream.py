"""A replica that dies in the middle of an answer must not look like one that finished early."""

import json

import openai
import pytest

from poise.core.request import Outcome
from support.apis import APIS, CHAT, DONE, Api, chat_event, events_of
from support.gateway import Gateway, gateway
from support.http_bytes import STREAM_HEAD, answer, chunk, request
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, streams, writes
from support.transcript import assert_same_bytes

ENDS = pytest.mark.parametrize("end", [Exchange.fin, Exchange.reset], ids=["fin", "reset"])
FIVE = tuple(chat_event({"content": text}) for text in ("one", " two", " three", " 四", " five"))


def error_in(event: bytes) -> dict[str, object]:
    """The error of an error event."""
    lines = [line for line in event.split(b"\n") if line.startswith(b"data:")]
    assert len(lines) == 1, f"not one data line: {event!r}"
    error = json.loads(lines[0].removeprefix(b"data:"))["error"]
    assert isinstance(error, dict)
    return error


def assert_tells_of_a_failure(body: bytes, sent: bytes, poise: Gateway, *ports: int) -> None:
    """The body is what was sent, then one error event with nothing after it, and no address in it."""
    assert_same_bytes(body[: len(sent)], sent, "what was sent before the failure")
    rest = events_of(bytes(body[len(sent) :]))
    assert len(rest) == 1, f"not one event after the failure: {rest}"
    error = error_in(rest[0])
    assert error["message"] and error["type"] and error["code"]
    for secret in ("127.0.0.1", *map(str, ports)):
        assert secret not in str(error)
    assert b"finish_reason" not in rest[0]
    assert poise.outcomes == {Outcome.FAILED: 1}


@ENDS
async def test_the_caller_gets_what_came_and_an_error_event(end) -> None:
    script = streams(*FIVE, then=end)
    async with (
        ScriptedReplica(script) as dying,
        ScriptedReplica(answers()) as healthy,
        gateway(dying, healthy) as poise,
    ):
        got = await poise.ask(request(body=CHAT.request_body(stream=True)))
        assert (got.status, got.complete) == (200, True)
        assert_tells_of_a_failure(bytes(got.body), b"".join(FIVE), poise, dying.port)
        assert healthy.requests == []


@ENDS
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_at_every_event_of_every_api(api: Api, end) -> None:
    first = api.events.index(next(event for event in api.events if event not in api.silent))
    for count in range(first + 1, len(api.events)):
        script = streams(*api.events[:count], then=end)
        async with ScriptedReplica(script) as dying, gateway(dying) as poise:
            got = await poise.ask(request(api.path, api.request_body(stream=True)))
            assert_tells_of_a_failure(bytes(got.body), b"".join(api.events[:count]), poise, dying.port)


@ENDS
async def test_in_the_middle_of_an_event_the_error_is_an_event_of_its_own(end) -> None:
    for cut in range(1, len(FIVE[1])):
        async with ScriptedReplica(streams(FIVE[0], FIVE[1][:cut], then=end)) as dying, gateway(dying) as poise:
            got = await poise.ask(request(body=CHAT.request_body(stream=True)))
            assert bytes(got.body).startswith(FIVE[0])
            assert error_in(events_of(got.body)[-1])["message"]
            assert bytes(got.body).endswith(b"\n\n")
            assert poise.outcomes == {Outcome.FAILED: 1}


@ENDS
async def test_in_the_middle_of_the_chunk_framing(end) -> None:
    framed = STREAM_HEAD + chunk(FIVE[0]) + chunk(FIVE[1])
    for cut in range(len(STREAM_HEAD + chunk(FIVE[0])) + 1, len(framed), 7):
        async with ScriptedReplica(writes(framed[:cut], then=end)) as dying, gateway(dying) as poise:
            got = await poise.ask(request(body=CHAT.request_body(stream=True)))
            assert got.complete
            assert error_in(events_of(got.body)[-1])["message"]


@ENDS
async def test_the_stock_client_raises_instead_of_returning_a_stump(end) -> None:
    async with ScriptedReplica(streams(*FIVE, then=end)) as dying, gateway(dying) as poise, poise.openai() as client:
        texts = []
        with pytest.raises(openai.APIError):
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}], stream=True
            )
            async for piece in stream:
                texts.append(piece.choices[0].delta.content)
        assert texts == ["one", " two", " three", " 四", " five"]


async def test_broken_json_is_none_of_the_gateways_business() -> None:
    events = (*FIVE, b'data: {"choices":[{"index":0,"del\n\n', chat_event({"content": "!"}, "stop"), DONE)
    async with ScriptedReplica(streams(*events)) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=CHAT.request_body(stream=True)))
        assert_same_bytes(got.body, b"".join(events))
        assert poise.outcomes == {Outcome.COMPLETED: 1}


@ENDS
async def test_an_answer_that_is_not_a_stream_of_events_is_visibly_cut(end) -> None:
    audio = bytes(range(256)) * 400
    for whole in (answer(200, audio, content_type="audio/mpeg"), answer(200, [audio], content_type="audio/mpeg")):
        script = writes(whole[: len(whole) // 2], then=end)
        async with ScriptedReplica(script) as dying, gateway(dying) as poise:
            got = await poise.ask(request("/v1/audio/speech", b'{"model":"m","input":"x"}'))
            assert (got.status, got.complete, got.cut_short) == (200, False, True)
            assert audio.startswith(bytes(got.body))
            assert poise.outcomes == {Outcome.FAILED: 1}


@ENDS
async def test_a_plain_answer_that_is_cut_has_committed_nothing(end) -> None:
    whole = answer(200, [b'{"id":"chatcmpl-1","choices":[', b'{"index":0}]}'])
    for cut in (len(whole) - 1, len(whole) - 8, whole.index(b"\r\n\r\n") + 4, 20):
        script = writes(whole[:cut], then=end)
        async with ScriptedReplica(script) as dying, ScriptedReplica(answers()) as healthy:
            async with gateway(dying, healthy) as poise:
                got = await poise.ask(request(body=CHAT.request_body(stream=False)))
                assert (got.status, got.complete, len(healthy.requests)) == (200, True, 1)
        async with ScriptedReplica(script) as dying, gateway(dying) as poise:
            got = await poise.ask(request(body=CHAT.request_body(stream=False)))
            assert (got.status, got.complete) == (502, True)
            assert json.loads(got.body)["error"]["message"]
