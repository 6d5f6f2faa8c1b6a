"""A gateway that stops: what is on its way is still answered, idle connections end, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.apis import CHAT
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers
from support.wire import DEADLINE_S, within

ASK = request(body=CHAT.request_body(stream=False))
READY = request("/ready", method="GET")


@asynccontextmanager
async def draining(poise: Gateway, *, drain_s: float = DEADLINE_S, delay_s: float = 0.0) -> AsyncIterator[None]:
    """The gateway drains from here on, and has done so at the end of the block."""
    task = asyncio.create_task(poise.data_path.close(drain_s, delay_s), name="kit drain")
    await asyncio.sleep(0)
    try:
        yield
    finally:
        await within(DEADLINE_S + drain_s + delay_s, task, "the gateway to stop")


async def test_for_the_delay_it_serves_on_but_says_that_it_is_not_ready() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        kept = await poise.client()
        assert (await kept.ask(READY)).status == 200
        async with draining(poise, delay_s=0.5):
            assert (await kept.ask(READY)).status == 503
            for caller in (await poise.client(), await poise.client()):
                got = await caller.ask(ASK)
                assert (got.status, got.value("connection")) == (200, b"close")
                await caller.wire.wait_closed()


async def test_a_request_that_is_still_being_sent_is_answered() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        in_body, in_head, silent, kept = [await poise.client() for _ in range(4)]
        await in_body.send(ASK[:-5])
        await in_head.send(ASK[:30])
        assert (await kept.ask(ASK)).status == 200
        async with draining(poise):
            await asyncio.sleep(0.3)
            await in_body.send_more(ASK[-5:])
            await in_head.send_more(ASK[30:])
            for caller in (in_body, in_head):
                assert (await caller.answer()).status == 200
                await caller.wire.wait_closed()
            for caller in (silent, kept):
                await caller.send(ASK)
                assert (await caller.answer()).status == 200, "it has only just come, or answered"


async def test_idle_connections_end_soon_and_nothing_waits_for_the_deadline() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        silent, kept = await poise.client(), await poise.client()
        assert (await kept.ask(ASK)).status == 200
        began_s = asyncio.get_running_loop().time()
        async with draining(poise, drain_s=60):
            for caller in (silent, kept):
                assert await caller.wire.wait_closed() - began_s < 3


async def test_what_callers_were_promised_is_written_before_the_end() -> None:
    async def large(exchange: Exchange) -> None:
        await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 3000000\r\n\r\n", body)

    body = bytes(3_000_000)
    async with ScriptedReplica(large) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=4096)
        caller.stop_reading()
        await caller.send(request("/v1/audio/speech", b"{}"))
        await replica.request()
        async with draining(poise):
            await asyncio.sleep(0.3)
            caller.read_again()
            got = await caller.answer()
            assert (got.status, bytes(got.body) == body) == (200, True)


@pytest.mark.parametrize("count", [1, 40])
async def test_connections_in_the_queue_of_the_kernel_are_accepted_before_it_is_closed(count: int) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        callers = [await poise.client() for _ in range(count)]
        for caller in callers:
            await caller.send(ASK)
        # Nothing of this has been accepted: the loop that does it has not had a turn.
        async with draining(poise):
            for caller in callers:
                assert (await caller.answer()).status == 200


async def test_every_request_that_was_sent_ahead_is_answered_before_the_connection_ends() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.ask(READY)
        async with draining(poise):
            await caller.send(ASK * 3, methods=(b"POST",) * 3)
            got = [await caller.answer() for _ in range(3)]
            assert [(answer.status, answer.value("connection")) for answer in got[1:]] == [(200, None), (200, b"close")]
