"""A request is tried again only while the caller has seen nothing of an answer, and never twice on one replica."""

import pytest

from poise.core.request import Outcome
from support.apis import APIS, CHAT, Api, chat_event, events_of
from support.gateway import gateway, short_settings
from support.http_bytes import STREAM_HEAD, request
from support.scripted_replica import Exchange, ScriptedReplica, closed_port
from support.scripts import answers, answers_error, closes, resets, streams, writes
from support.transcript import assert_same_bytes

TOKENS = (chat_event({"content": "one"}), chat_event({"content": " two"}), chat_event({"content": " three"}))
TOOL_CALL = tuple(
    chat_event({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "pay", "arguments": part}}]})
    for part in ('{"sum":', " 100}")
)
ASK = request(body=CHAT.request_body(stream=True))
GOOD = b"".join(CHAT.events)


@pytest.mark.parametrize("events", [TOKENS, TOOL_CALL], ids=["text", "tool call"])
@pytest.mark.parametrize("end", [Exchange.fin, Exchange.reset], ids=["fin", "reset"])
async def test_after_output_nothing_is_tried_again(events: tuple[bytes, ...], end) -> None:
    settings = short_settings(retry={"attempts": 3})
    async with ScriptedReplica(streams(*events, then=end)) as first, ScriptedReplica(streams()) as second:
        async with gateway(first, second, settings=settings) as poise:
            got = await poise.ask(ASK)
            assert_same_bytes(got.body[: len(b"".join(events))], b"".join(events))
            last = events_of(got.body)[len(events) :]
            assert len(last) == 1 and b'"error"' in last[0]
            assert second.requests == []
            assert sum(poise.counters.retries.values()) == 0


BEFORE_OUTPUT = {
    "closes without a byte": closes,
    "resets without a byte": resets,
    "closes within the head": writes(STREAM_HEAD[:50], then=Exchange.fin),
    "closes after the head": writes(STREAM_HEAD, then=Exchange.fin),
    "resets after the head": writes(STREAM_HEAD, then=Exchange.reset),
    "closes after a comment": streams(b": keep-alive\n\n", then=Exchange.fin),
    "closes within the first event": streams(TOKENS[0][:30], then=Exchange.fin),
    "answers 500": answers_error(500),
    "answers 502": answers_error(502),
    "answers 503": answers_error(503),
    "is no HTTP server": writes(b"220 mail.test ESMTP\r\n\r\n", then=Exchange.fin),
}


@pytest.mark.parametrize("trouble", BEFORE_OUTPUT)
async def test_before_output_it_is_tried_on_another_once(trouble: str) -> None:
    settings = short_settings(retry={"attempts": 3})
    async with ScriptedReplica(BEFORE_OUTPUT[trouble]) as first, ScriptedReplica(streams()) as second:
        async with gateway(first, second, settings=settings) as poise:
            got = await poise.ask(ASK)
            assert got.status == 200
            assert_same_bytes(got.body, GOOD)
            assert (len(first.requests), len(second.requests)) == (1, 1)
            assert first.requests[0].body == second.requests[0].body == CHAT.request_body(stream=True)
            assert poise.outcomes == {Outcome.COMPLETED: 1}
            assert sum(poise.counters.retries.values()) == 1
            assert len(poise.log.lines) == 1
            assert (poise.log.lines[0].attempts, poise.log.lines[0].replica) == (2, "r2")


async def test_a_refused_connection() -> None:
    with closed_port() as sock:
        async with ScriptedReplica(streams()) as second, gateway(sock.getsockname()[1], second) as poise:
            assert_same_bytes((await poise.ask(ASK)).body, GOOD)
            assert len(second.requests) == 1


async def test_the_conversation_of_a_retry() -> None:
    async with ScriptedReplica(resets) as first, ScriptedReplica(answers_error(503)) as second:
        async with ScriptedReplica(answers(200, {"id": "1"})) as third:
            async with gateway(first, second, third, settings=short_settings(retry={"attempts": 3})) as poise:
                await poise.ask(request(body=CHAT.request_body(stream=False)))
                poise.transcript.assert_is("""
                    caller: POST /v1/chat/completions
                    r1: gets POST /v1/chat/completions
                    r1: resets
                    r2: gets POST /v1/chat/completions
                    r2: says 503
                    r3: gets POST /v1/chat/completions
                    r3: says 200
                    caller got: 200 {"id":"1"}
                """)


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
async def test_no_more_replicas_are_tried_than_allowed(attempts: int) -> None:
    replicas = [ScriptedReplica(closes) for _ in range(4)]
    async with replicas[0], replicas[1], replicas[2], replicas[3]:
        async with gateway(*replicas, settings=short_settings(retry={"attempts": attempts})) as poise:
            got = await poise.ask(ASK)
            assert got.status == 502
            assert [len(replica.requests) for replica in replicas] == [int(n < attempts) for n in range(4)]
            assert poise.outcomes == {Outcome.FAILED: 1}


async def test_retries_have_a_budget() -> None:
    settings = short_settings(retry={"attempts": 2, "budget_floor": 3, "budget_ratio": 0.0})
    async with ScriptedReplica(closes) as first, ScriptedReplica(streams()) as second:
        async with gateway(first, second, settings=settings) as poise:
            statuses = [(await poise.ask(ASK)).status for _ in range(5)]
            assert statuses == [200] * 3 + [502] * 2
            assert (len(first.requests), len(second.requests)) == (5, 3)


@pytest.mark.parametrize("api", [api for api in APIS if api.silent], ids=lambda api: api.name)
async def test_bookkeeping_events_commit_nothing(api: Api) -> None:
    async with ScriptedReplica(streams(*api.silent, then=Exchange.fin)) as first:
        async with ScriptedReplica(streams(api=api)) as second, gateway(first, second) as poise:
            got = await poise.ask(request(api.path, api.request_body(stream=True)))
            assert_same_bytes(got.body, api.whole)


async def test_a_body_of_many_reads_is_sent_whole_to_the_second_replica_too() -> None:
    body = CHAT.request_body(stream=True, padding="中" * 300_000)
    async with ScriptedReplica(resets) as first, ScriptedReplica(streams()) as second, gateway(first, second) as poise:
        assert (await poise.ask(request(body=body))).status == 200
        assert_same_bytes(second.requests[0].body, body)
