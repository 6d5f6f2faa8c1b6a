"""An event may be as long as it likes: it is passed on as it comes, whole, and nothing before it waits for it."""

import asyncio

import pytest

from poise.core.request import Outcome
from support.apis import DONE, chat_event
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, chunk, cuts, request, single_bytes
from support.scripted_replica import Exchange, ScriptedReplica
from support.transcript import assert_same_bytes

SMALL = chat_event({"content": "a"})
LARGE = chat_event({"content": "中x" * (3 * 1024 * 1024 // 4)})
FINAL = chat_event({"content": "z"}, "stop") + DONE
ASK = request(body=b'{"model":"m","stream":true}')


async def test_between_two_small_events() -> None:
    first_arrived = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, chunk(SMALL))
        await first_arrived.wait()
        await exchange.write(chunk(LARGE), chunk(FINAL), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(ASK)
        answer = await caller.head()
        assert await answer.event() == SMALL
        first_arrived.set()
        await answer.finish()
        assert_same_bytes(answer.body, SMALL + LARGE + FINAL)
        await poise.settled()
        assert poise.counters.buffered_bytes == 0
        assert poise.outcomes == {Outcome.COMPLETED: 1}


@pytest.mark.parametrize("size", [1, 1000, 65_536, 300_001])
async def test_as_the_first_event_in_chunks_of_any_size(size: int) -> None:
    whole = LARGE + FINAL
    parts = cuts(whole, *range(size, len(whole), size)) if size > 1 else [*single_bytes(whole[:40]), whole[40:]]

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, *map(chunk, parts), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        answer = await poise.ask(ASK)
        assert_same_bytes(answer.body, whole)
        assert poise.outcomes == {Outcome.COMPLETED: 1}


async def test_a_long_event_is_passed_on_before_it_has_ended_once_output_has_begun() -> None:
    half_arrived = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, chunk(SMALL), chunk(LARGE[: len(LARGE) // 2]))
        await half_arrived.wait()
        await exchange.write(chunk(LARGE[len(LARGE) // 2 :]), chunk(FINAL), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(ASK)
        answer = await caller.head()
        while len(answer.body) < len(SMALL) + len(LARGE) // 2:
            assert await answer.piece()
        half_arrived.set()
        await answer.finish()
        assert_same_bytes(answer.body, SMALL + LARGE + FINAL)
