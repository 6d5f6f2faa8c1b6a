"""A stream that flows is never cut, however long it takes; one that has gone silent is, soon after its limit.

The run at real scale (one event a second for 400 s with the default limits) takes `POISE_REAL_SCALE=1`.
"""

import asyncio
import os

import pytest

from poise.core.request import Outcome
from poise.proxy.settings import DataPathSettings
from support.apis import COMMENT, DONE, chat_event, events_of
from support.gateway import gateway, short_settings
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, answer, chunk, request
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.transcript import assert_same_bytes

ASK = request(body=b'{"model":"m","stream":true}')
IDLE_S = 0.4


def events(count: int) -> list[bytes]:
    """So many output events."""
    return [chat_event({"content": f"{number} "}) for number in range(count)]


ENDING = chat_event({"content": ""}, "stop") + DONE


def paced(count: int, gap_s: float) -> Script:
    """One event every `gap_s`, then the end."""

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD)
        for event in events(count):
            await exchange.write(chunk(event))
            await asyncio.sleep(gap_s)
        await exchange.write(chunk(ENDING), LAST_CHUNK)

    return script


def then_silent(*parts: bytes) -> Script:
    """Write the parts and say no more."""

    async def script(exchange: Exchange) -> None:
        await exchange.write(*parts)
        await exchange.hang()

    return script


async def test_a_flowing_stream_outlasts_every_limit() -> None:
    limits = {"idle_s": IDLE_S, "first_output_s": 0.5, "total_s": 0.8, "request_s": 0.5, "hold_s": 0.5}
    settings = short_settings(**limits, keep_alive_s=0.5)
    async with ScriptedReplica(paced(15, IDLE_S / 2)) as replica, gateway(replica, settings=settings) as poise:
        got = await poise.ask(ASK)
        assert_same_bytes(got.body, b"".join(events(15)) + ENDING)
        assert got.complete
        assert poise.outcomes == {Outcome.COMPLETED: 1}


async def test_comments_keep_a_stream_alive_as_output_does() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, chunk(events(1)[0]))
        for _ in range(8):
            await asyncio.sleep(IDLE_S / 2)
            await exchange.write(chunk(COMMENT))
        await exchange.write(chunk(ENDING), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica, settings=short_settings(idle_s=IDLE_S)) as poise:
        got = await poise.ask(ASK)
        assert_same_bytes(got.body, events(1)[0] + COMMENT * 8 + ENDING)


@pytest.mark.parametrize("sent", [b"".join(events(5)), b"".join(events(5)) + b'data: {"cho'], ids=["between", "within"])
async def test_silence_ends_a_stream_with_an_error_event(sent: bytes) -> None:
    settings = short_settings(idle_s=IDLE_S)
    async with ScriptedReplica(then_silent(STREAM_HEAD, chunk(sent))) as replica:
        async with gateway(replica, settings=settings) as poise:
            got = await poise.ask(ASK)
            exchange = replica.requests[0]
            silent_s = got.pieces[-1][0] - got.pieces[0][0]
            assert IDLE_S <= silent_s < IDLE_S + 0.6
            assert bytes(got.body).startswith(b"".join(events(5)))
            assert got.complete
            assert b'"error"' in events_of(got.body)[-1] and DONE not in got.body
            assert await exchange.wire.wait_closed() < got.pieces[-1][0] + 0.5
            assert poise.outcomes == {Outcome.FAILED: 1}


async def test_silence_within_a_plain_answer() -> None:
    whole = answer(200, b'{"choices":[]}')
    async with ScriptedReplica(then_silent(whole[:-5])) as replica:
        async with gateway(replica, settings=short_settings(idle_s=IDLE_S, first_output_s=1.0, total_s=1.5)) as poise:
            got = await poise.ask(request(body=b'{"model":"m"}'))
            assert (got.status, got.complete) == (504, True)
            await replica.requests[0].wire.wait_closed()


async def test_silence_within_a_body_that_is_passed_on_as_it_comes_breaks_the_connection() -> None:
    whole = answer(200, bytes(5000), content_type="audio/mpeg")
    async with ScriptedReplica(then_silent(whole[:-5])) as replica:
        async with gateway(replica, settings=short_settings(idle_s=IDLE_S)) as poise:
            got = await poise.ask(request("/v1/audio/speech", b'{"model":"m"}'))
            assert (got.status, got.cut_short) == (200, True)
            assert poise.outcomes == {Outcome.FAILED: 1}


@pytest.mark.slow
@pytest.mark.timeout(450)
@pytest.mark.skipif("POISE_REAL_SCALE" not in os.environ, reason="takes 400 s; set POISE_REAL_SCALE=1 to run it")
async def test_four_hundred_seconds_with_the_default_limits() -> None:
    settings = DataPathSettings(host="127.0.0.1", port=0)
    async with ScriptedReplica(paced(400, 1.0)) as replica, gateway(replica, settings=settings) as poise:
        got = await poise.ask(ASK)
        assert_same_bytes(got.body, b"".join(events(400)) + ENDING)
