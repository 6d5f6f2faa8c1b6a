"""A gateway that stops: what is on its way is still answered, idle connections end, and nobody waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from poise.core.request import Outcome
from support.apis import APIS, CHAT, Api, events_of
from support.gateway import Gateway, gateway
from support.http_bytes import request
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, hangs, streams
from support.wire import DEADLINE_S, until, within

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


# -- at the deadline


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_a_stream_that_outlasts_the_deadline_ends_with_an_error(api: Api) -> None:
    async with ScriptedReplica(streams(*api.silent, api.output, api=api, then=Exchange.hang)) as replica:
        async with gateway(replica) as poise:
            caller = await poise.client()
            await caller.send(request(api.path, api.request_body(stream=True)))
            got = await caller.head()
            await got.read_until(api.output)
            async with draining(poise, drain_s=0.2):
                await got.finish()
                await caller.wire.wait_closed()
            assert got.complete and b"[DONE]" not in got.body
            assert b'"code":"gateway_stopped"' in events_of(got.body)[-1]
            (line,) = poise.log.lines
            assert (line.outcome, line.error, line.replica) == (Outcome.FAILED, "gateway_stopped", "r1")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_output_is_refused_at_the_deadline_with_a_hint(stream: bool) -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(request(body=CHAT.request_body(stream=stream)))
        exchange = await replica.request()
        async with draining(poise, drain_s=0.2):
            got = await caller.answer()
            assert (got.status, got.value("retry-after"), got.value("connection")) == (503, b"1", b"close")
            assert error_of(got)["code"] == "gateway_stopped"
            await exchange.wire.wait_closed()
        assert [(line.outcome, line.error) for line in poise.log.lines] == [(Outcome.FAILED, "gateway_stopped")]


async def test_a_request_that_waits_or_is_half_sent_is_refused_at_the_deadline() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        (only,) = poise.fleet
        only.available = False
        waiting, half_sent = await poise.client(), await poise.client()
        await waiting.send(ASK)
        await half_sent.send(ASK[:-1])
        await until(lambda: poise.counters.in_flight == 1, "the request to wait")
        async with draining(poise, drain_s=0.2):
            for caller in (waiting, half_sent):
                assert (await caller.answer()).status == 503
        assert sorted(line.outcome for line in poise.log.lines) == [Outcome.REFUSED, Outcome.REFUSED]
        assert replica.requests == []


async def test_a_plain_answer_that_has_begun_is_cut_short() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 9000\r\n\r\nxxx")
        await exchange.hang()

    async with ScriptedReplica(endless) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(request("/v1/audio/speech", b"{}"))
        got = await caller.head()
        async with draining(poise, drain_s=0.2):
            assert (await got.finish()).cut_short


async def test_a_caller_who_reads_nothing_cannot_keep_the_gateway_from_stopping() -> None:
    async with ScriptedReplica(streams(*[CHAT.output] * 20_000)) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=4096)
        caller.stop_reading()
        await caller.send(request(body=CHAT.request_body(stream=True)))
        await replica.request()
        await asyncio.sleep(0.2)
        async with draining(poise, drain_s=0.2):
            pass
        assert [line.outcome for line in poise.log.lines] == [Outcome.FAILED]
