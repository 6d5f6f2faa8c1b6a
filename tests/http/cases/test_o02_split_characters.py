"""Answers are bytes: wherever the network cuts them, they arrive as they were sent, and are understood the same."""

import asyncio

import pytest

from poise.core.request import Outcome
from support.apis import APIS, DONE, USAGE, chat_event
from support.gateway import Gateway, gateway
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, chunk, chunked, cuts, request, single_bytes
from support.scripted_replica import Exchange, ScriptedReplica
from support.transcript import assert_same_bytes

STREAM = b"".join(
    (
        chat_event({"content": "中"}),
        chat_event({"content": "é🙂"}, "stop"),
        chat_event(None, usage=USAGE),
        DONE,
    )
)
ASK = b'{"model":"m","stream":true}'
REPORTED = b'data: {"choices":[{"index":0,"delta":{"content":"\xe4\xb8\xad"}}]}\n\n' + DONE


def said(poise: Gateway) -> tuple[object, ...]:
    """What the gateway made of the answers it has passed on, without times."""
    return tuple((line.outcome, line.status, line.prompt_tokens, line.output_tokens) for line in poise.log.lines)


async def test_two_writes_cut_at_every_position() -> None:
    async def script(exchange: Exchange) -> None:
        position = int(exchange.head.value("x-cut") or b"0")
        await exchange.write(STREAM_HEAD, *(chunk(part) for part in cuts(STREAM, position)), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        gate = asyncio.Semaphore(20)

        async def ask(position: int) -> bytes:
            async with gate:
                answer = await poise.ask(request(body=ASK, headers=[("x-cut", str(position))]))
            assert answer.complete
            return bytes(answer.body)

        bodies = await asyncio.gather(*(ask(position) for position in range(len(STREAM))))
        for body in bodies:
            assert_same_bytes(body, STREAM)
        assert set(said(poise)) == {(Outcome.COMPLETED, 200, 11, 7)}
        assert poise.counters.output_tokens == 7 * len(bodies)


@pytest.mark.parametrize("framing", ["one chunk a byte", "one write a byte"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_one_byte_at_a_time(api, framing: str) -> None:
    async def script(exchange: Exchange) -> None:
        if framing == "one chunk a byte":
            await exchange.write(STREAM_HEAD, *map(chunk, single_bytes(api.whole)), LAST_CHUNK)
        else:
            await exchange.write(*single_bytes(STREAM_HEAD + chunked(api.events)))

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        answer = await poise.ask(request(api.path, api.request_body(stream=True)))
        assert answer.complete
        assert_same_bytes(answer.body, api.whole)
        assert poise.outcomes == {Outcome.COMPLETED: 1}


async def test_the_reported_body_which_never_names_a_finish_reason() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, *(chunk(part) for part in cuts(REPORTED, exchange.number)), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        for _ in range(len(REPORTED)):
            answer = await poise.ask(request(body=ASK))
            assert_same_bytes(answer.body, REPORTED)


async def test_events_with_other_line_ends_and_comments_between_them() -> None:
    streams = [STREAM.replace(b"\n", b"\r\n"), b": a\n\n" + STREAM.replace(b"data: ", b"data:") + b": z\n\n"]

    async def script(exchange: Exchange) -> None:
        await exchange.write(*single_bytes(STREAM_HEAD + chunked([streams[exchange.number - 1]])))

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        for stream in streams:
            answer = await poise.ask(request(body=ASK))
            assert_same_bytes(answer.body, stream)
        assert set(said(poise)) == {(Outcome.COMPLETED, 200, 11, 7)}
