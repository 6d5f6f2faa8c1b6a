"""A stream's 200 is not its answer: what its first and its last events say decides what becomes of the request."""

import asyncio
import json

import openai
import pytest

from poise.core.request import Outcome
from support.apis import APIS, BUSY, CHAT, COMMENT, COMPLETIONS, DONE, Api, chat_event, events_of, without_comments
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, answer, chunk, request, to_json
from support.raw_client import Answer
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.scripts import answers, answers_error, closes, hangs, streams, writes
from support.transcript import assert_same_bytes

EACH_API = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
HOLD_S = 0.25


async def ask(poise: Gateway, api: Api, *, stream: bool = True) -> Answer:
    """One request of the API, answered."""
    return await poise.ask(request(api.path, api.request_body(stream=stream)))


def refuses_in_stream(api: Api, status: int, *before: bytes) -> Script:
    """Status 200, and the refusal as the first event that says anything, as vLLM does it under load."""
    end = (DONE,) if api.ending == DONE else ()
    return streams(*before, api.error_event(status), *end)


def last_error(body: bytes) -> dict[str, object]:
    """The error of the stream's last event."""
    line = next(line for line in events_of(body)[-1].split(b"\n") if line.startswith(b"data:"))
    error = json.loads(line.removeprefix(b"data:"))["error"]
    assert isinstance(error, dict) and error["message"]
    return error


# -- the first event


@EACH_API
@pytest.mark.parametrize("status", [500, 503])
async def test_a_refusal_as_first_event_is_retried_elsewhere(api: Api, status: int) -> None:
    async with ScriptedReplica(refuses_in_stream(api, status)) as busy, ScriptedReplica(streams(api=api)) as free:
        async with gateway(busy, free) as poise:
            got = await ask(poise, api)
            assert got.status == 200
            assert_same_bytes(got.body, api.whole)
            assert got.value("x-poise-replica") == b"r2"
            assert (len(busy.requests), len(free.requests)) == (1, 1)
            assert poise.outcomes == {Outcome.COMPLETED: 1}
            first = poise.fleet.named("r1")
            assert first is not None and first.outcomes[Outcome.FAILED] == 1


@EACH_API
@pytest.mark.parametrize("status", [500, 503])
async def test_a_refusal_by_everybody_has_its_real_status(api: Api, status: int) -> None:
    script = refuses_in_stream(api, status)
    async with ScriptedReplica(script) as first, ScriptedReplica(script) as second, gateway(first, second) as poise:
        got = await ask(poise, api)
        assert got.status == status
        assert got.value("content-type") == b"application/json"
        assert json.loads(got.body)["error"]["message"] == BUSY
        assert got.value("retry-after") if status == 503 else True
        assert (len(first.requests), len(second.requests)) == (1, 1)
        assert poise.outcomes == {Outcome.FAILED: 1}


@EACH_API
async def test_a_callers_error_as_first_event_has_its_real_status_and_is_not_retried(api: Api) -> None:
    script = refuses_in_stream(api, 400)
    async with ScriptedReplica(script) as first, ScriptedReplica(streams(api=api)) as second:
        async with gateway(first, second) as poise:
            got = await ask(poise, api)
            assert got.status == 400
            assert got.value("content-type") == b"application/json"
            assert json.loads(got.body)["error"]["message"] == BUSY
            assert second.requests == []
            assert poise.outcomes == {Outcome.CALLER_ERROR: 1}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError), (404, openai.NotFoundError), (429, openai.RateLimitError),
        (500, openai.InternalServerError), (503, openai.InternalServerError),
    ],
)  # fmt: skip
async def test_the_stock_client_raises_at_once(status: int, error: type[openai.APIStatusError]) -> None:
    async with ScriptedReplica(refuses_in_stream(CHAT, status)) as replica, gateway(replica) as poise:
        async with poise.openai() as client:
            with pytest.raises(error, match="currently busy"):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}], stream=True
                )


@EACH_API
async def test_comments_and_bookkeeping_commit_nothing(api: Api) -> None:
    script = refuses_in_stream(api, 503, COMMENT, COMMENT, *api.silent, b": another\n: of two lines\n\n")
    async with ScriptedReplica(script) as busy, ScriptedReplica(streams(COMMENT, *api.events)) as free:
        async with gateway(busy, free) as poise:
            got = await ask(poise, api)
            assert_same_bytes(without_comments(got.body), api.whole)
            assert got.complete


async def test_an_error_event_cut_anywhere_is_still_one() -> None:
    whole = STREAM_HEAD + chunk(CHAT.error_event(503) + DONE) + LAST_CHUNK

    async def script(exchange: Exchange) -> None:
        cut = exchange.number
        await exchange.write(whole[:cut], whole[cut:])

    async with ScriptedReplica(script) as busy, gateway(busy, settings=short_settings(retry={"attempts": 1})) as poise:
        for _ in range(len(whole) - 1):
            assert (await ask(poise, CHAT)).status == 503


# -- holding


@EACH_API
async def test_a_long_wait_is_filled_with_comments_and_can_still_be_retried(api: Api) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD)
        await asyncio.sleep(HOLD_S * 3.8)
        await exchange.write(chunk(api.error_event(503)), LAST_CHUNK)

    async with ScriptedReplica(script) as busy, ScriptedReplica(streams(api=api)) as free:
        async with gateway(busy, free, settings=short_settings(hold_s=HOLD_S)) as poise:
            began_s = asyncio.get_running_loop().time()
            got = await ask(poise, api)
            assert (got.status, got.complete) == (200, True)
            assert (got.value("content-type") or b"").startswith(b"text/event-stream")
            assert got.value("x-accel-buffering") == b"no"
            comments = [at_s - began_s for at_s, piece in got.pieces if piece.startswith(b":")]
            assert 2 <= len(comments) <= 4
            assert HOLD_S <= comments[0] < HOLD_S + 0.3
            assert_same_bytes(without_comments(got.body), api.whole)
            assert poise.outcomes == {Outcome.COMPLETED: 1}


WAITED_FOR: dict[str, Script] = {
    "an in-stream refusal": streams(CHAT.error_event(503), DONE),
    "a refusal": answers_error(503),
    "a callers error": answers_error(400),
    "a lost connection": closes,
}


@pytest.mark.parametrize("end", WAITED_FOR)
async def test_a_failure_after_a_long_wait_is_told_inside_the_stream(end: str) -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(HOLD_S * 2)
        await WAITED_FOR[end](exchange)

    async with ScriptedReplica(script) as replica:
        async with gateway(replica, settings=short_settings(hold_s=HOLD_S)) as poise:
            got = await ask(poise, CHAT)
            assert (got.status, got.complete) == (200, True)
            assert got.body.startswith(b":")
            assert last_error(got.body)
            assert DONE not in got.body
            expected = Outcome.CALLER_ERROR if end == "a callers error" else Outcome.FAILED
            assert poise.outcomes == {expected: 1}


async def test_a_time_limit_after_a_long_wait() -> None:
    settings = short_settings(hold_s=HOLD_S, first_output_s=HOLD_S * 3, total_s=HOLD_S * 3)
    async with ScriptedReplica(hangs) as replica, gateway(replica, settings=settings) as poise:
        got = await ask(poise, CHAT)
        assert got.status == 200 and last_error(got.body)
        assert poise.outcomes == {Outcome.FAILED: 1}


async def test_the_messages_api_gets_a_typed_error_after_a_long_wait() -> None:
    messages = APIS[-1]
    settings = short_settings(hold_s=HOLD_S, first_output_s=HOLD_S * 3, total_s=HOLD_S * 3)
    async with ScriptedReplica(hangs) as replica, gateway(replica, settings=settings) as poise:
        got = await ask(poise, messages)
        event = events_of(got.body)[-1]
        assert event.startswith(b"event: error\n")
        assert json.loads(event.split(b"data: ")[1])["type"] == "error"


async def test_a_plain_request_is_never_answered_early() -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(HOLD_S * 2.5)
        await answers()(exchange)

    async with ScriptedReplica(script) as replica:
        async with gateway(replica, settings=short_settings(hold_s=HOLD_S)) as poise:
            got = await ask(poise, CHAT, stream=False)
            assert (got.status, bytes(got.body)) == (200, to_json(CHAT.plain))


async def test_a_slow_first_output_elsewhere_is_waited_for_on() -> None:
    settings = short_settings(first_output_s=0.4)
    async with ScriptedReplica(writes(STREAM_HEAD)) as silent, ScriptedReplica(streams()) as second:
        async with gateway(silent, second, settings=settings) as poise:
            got = await ask(poise, CHAT)
            assert_same_bytes(without_comments(got.body), CHAT.whole)
            assert (len(silent.requests), len(second.requests)) == (1, 1)
            await silent.requests[0].wire.wait_closed()


# -- the last events


@EACH_API
async def test_a_stream_that_was_broken_off_by_the_engine_ends_with_an_error(api: Api) -> None:
    sent = api.events[: api.events.index(api.output) + 1]
    async with ScriptedReplica(streams(*sent, *api.aborted)) as replica, ScriptedReplica(streams(api=api)) as other:
        async with gateway(replica, other) as poise:
            got = await ask(poise, api)
            assert got.complete and got.body.startswith(b"".join(sent))
            if api.name != "responses":
                assert last_error(got.body)
            assert DONE not in got.body
            assert other.requests == []
            assert poise.outcomes == {Outcome.FAILED: 1}


@EACH_API
async def test_a_stream_without_its_last_event_ends_with_an_error(api: Api) -> None:
    async with ScriptedReplica(streams(*api.events[:-1])) as replica, gateway(replica) as poise:
        got = await ask(poise, api)
        assert got.complete
        assert_same_bytes(got.body[: len(api.begun)], api.begun)
        assert last_error(got.body)
        assert poise.outcomes == {Outcome.FAILED: 1}


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=lambda api: api.name)
async def test_done_without_a_finish_reason_is_no_end(api: Api) -> None:
    begun = api.events[: api.events.index(api.output) + 1]
    sent = (b"".join(begun), DONE)
    async with ScriptedReplica(streams(*sent)) as replica, gateway(replica) as poise:
        got = await ask(poise, api)
        assert_same_bytes(got.body[: len(sent[0])], sent[0])
        assert last_error(got.body)
        assert DONE not in got.body
        assert poise.outcomes == {Outcome.FAILED: 1}


async def test_a_request_that_was_dropped_from_the_engines_queue_is_tried_elsewhere() -> None:
    """vLLM names the role and ends with `[DONE]` when it stops before the request has run."""
    dropped = streams(CHAT.events[0], DONE)
    async with ScriptedReplica(dropped) as first, ScriptedReplica(streams(*CHAT.events)) as second:
        async with gateway(first, second) as poise:
            got = [await ask(poise, CHAT) for _ in range(2)]
            assert [answer.body for answer in got] == [b"".join(CHAT.events)] * 2
        assert (len(first.requests), len(second.requests)) == (2, 2)


@EACH_API
async def test_the_engines_own_error_in_mid_stream_is_passed_on_and_counted(api: Api) -> None:
    sent = (*api.events[: api.events.index(api.output) + 1], api.error_event(500, "EngineCore encountered an issue."))
    end = (DONE,) if api.ending == DONE else ()
    async with ScriptedReplica(streams(*sent, *end)) as replica, gateway(replica) as poise:
        got = await ask(poise, api)
        assert_same_bytes(got.body[: len(b"".join(sent))], b"".join(sent))
        assert bytes(got.body).count(b"EngineCore") == 1
        assert bytes(got.body).count(b'"error"') == bytes(b"".join(sent)).count(b'"error"'), "told twice"
        assert poise.outcomes == {Outcome.FAILED: 1}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
async def test_a_false_end_is_found_in_pieces_of_any_size(size: int) -> None:
    whole = CHAT.events[0] + CHAT.output + b"".join(CHAT.aborted)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, *map(chunk, pieces), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        got = await ask(poise, CHAT)
        assert last_error(got.body)
        assert DONE.strip() not in got.body
        assert poise.outcomes == {Outcome.FAILED: 1}


AFTER_THE_FINISH = {
    "nothing": (),
    "usage": (chat_event(None, usage={"prompt_tokens": 1, "completion_tokens": 1}),),
    "comments": (COMMENT, COMMENT, COMMENT, COMMENT),
    "other choices": tuple(chat_event({"content": str(number)}) for number in range(6)),
    "a large event": (chat_event(None, padding="x" * 20_000),),
    "large usage and comments": (chat_event(None, padding="x" * 20_000), COMMENT, chat_event(None, usage={}), COMMENT),
}


@pytest.mark.parametrize("together", [True, False], ids=["in one read", "in a read each"])
@pytest.mark.parametrize("what", AFTER_THE_FINISH)
async def test_whatever_comes_between_the_finish_reason_and_the_end(what: str, together: bool) -> None:
    events = (CHAT.output, chat_event({"content": ""}, "stop"), *AFTER_THE_FINISH[what], DONE)
    script = streams(b"".join(events)) if together else streams(*events)
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        got = await ask(poise, CHAT)
        assert_same_bytes(got.body, b"".join(events))
        assert poise.outcomes == {Outcome.COMPLETED: 1}


async def test_text_that_looks_like_an_end_is_text() -> None:
    tricky = [
        '"finish_reason":"abort"',
        "data: [DONE]\n\n",
        '{"error":{"message":"x"}}',
        "\ndata: [DONE]",
        "event: error",
    ]
    events = (*(chat_event({"content": text}) for text in tricky), chat_event({"content": tricky[0]}, "stop"), DONE)
    async with ScriptedReplica(streams(*events)) as replica, gateway(replica) as poise:
        got = await ask(poise, CHAT)
        assert_same_bytes(got.body, b"".join(events))
        assert poise.outcomes == {Outcome.COMPLETED: 1}


# -- plain answers


@pytest.mark.parametrize("api", [api for api in APIS if api.plain_aborted], ids=lambda api: api.name)
async def test_a_plain_answer_that_was_broken_off_is_tried_elsewhere_else_502(api: Api) -> None:
    async with (
        ScriptedReplica(answers(200, api.plain_aborted)) as first,
        ScriptedReplica(answers(200, api.plain)) as second,
    ):
        async with gateway(first, second) as poise:
            got = await ask(poise, api, stream=False)
            assert (got.status, bytes(got.body)) == (200, to_json(api.plain))
        async with gateway(first) as poise:
            got = await ask(poise, api, stream=False)
            assert got.status == 502
            assert json.loads(got.body)["error"]["message"]
            assert poise.outcomes == {Outcome.FAILED: 1}


async def test_a_long_plain_answer_is_passed_on_whole() -> None:
    value = {**CHAT.plain, "padding": "中" * 2_000_000}
    async with ScriptedReplica(answers(200, value)) as replica, gateway(replica) as poise:
        got = await ask(poise, CHAT, stream=False)
        assert_same_bytes(got.body, to_json(value))


async def test_a_stream_that_nobody_asked_for_and_a_plain_answer_to_who_asked_for_one() -> None:
    async with ScriptedReplica(streams()) as replica, gateway(replica) as poise:
        assert_same_bytes((await ask(poise, CHAT, stream=False)).body, CHAT.whole)
    async with ScriptedReplica(writes(answer(200, to_json(CHAT.plain)))) as replica, gateway(replica) as poise:
        assert_same_bytes((await ask(poise, CHAT, stream=True)).body, to_json(CHAT.plain))
