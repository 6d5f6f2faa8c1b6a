"""What is too large, too slow, not HTTP or not served is refused in words, early, and reaches no replica."""

import asyncio

import pytest

from support.apis import CHAT
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, chunk, request, single_bytes
from support.raw_client import Answer
from support.refusals import error_of, refused
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, echoes
from support.wire import until

BODY = CHAT.request_body(stream=False)
GOOD = request(body=BODY)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


# -- head


@pytest.mark.parametrize("cut", [None, 5000], ids=["at once", "bit by bit"])
@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X-Large: " + b"x" * 9000,
        HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(900)),
        b"GET /v1/models?" + b"q" * 9000,
        HEAD + b"X" * 9000,
    ],
    ids=["one header", "many headers", "target", "header name"],
)
async def test_a_large_head_is_431(sent: bytes, cut: int | None) -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"head_bytes": 8192})) as poise:
            caller = await poise.client()
            await caller.send(*([sent] if cut is None else [sent[:cut], sent[cut:]]))
            got = await caller.answer(within_s=2)
            assert got.status in ((414, 431) if b"?" in sent[:20] else (431,))
            assert "8192" in str(error_of(got)["message"])
            await caller.wire.wait_closed()
            assert replica.requests == []


async def test_a_head_that_is_complete_and_too_large_is_431_too() -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"head_bytes": 8192})) as poise:
            await refused(poise, replica, request(body=BODY, headers=[("X-Large", "x" * 9000)]), 431)


async def test_a_head_within_its_limit_may_be_followed_by_any_body() -> None:
    body = BODY.ljust(60_000)
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"head_bytes": 8192})) as poise:
            caller = await poise.client()
            for _ in range(3):
                got = await caller.ask(request(body=body, headers=[("X-Large", "x" * 7500)]))
                assert got.status == 200


# -- time


async def trickle(poise: Gateway, at_once: bytes, slowly: bytes) -> Answer:
    """The answer to a request whose second part comes one byte at a time, as slowly as an attacker may send it."""
    caller = await poise.client()
    await caller.send(at_once, methods=(b"POST",))
    for byte in single_bytes(slowly):
        await asyncio.sleep(0.02)
        if caller.wire.reads:
            break
        await caller.send_more(byte)
    got = await caller.answer()
    await caller.wire.wait_closed()
    return got


BODY_HEAD = HEAD + b"Content-Length: 500\r\n\r\n"
CHUNKED_HEAD = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("at_once", "slowly"),
    [(b"P", HEAD[1:] * 9), (HEAD, b"X: 1\r\n" * 70), (BODY_HEAD, b" " * 400), (CHUNKED_HEAD, chunk(b" ") * 70)],
    ids=["all", "headers", "body", "chunks"],
)
async def test_a_request_that_trickles_in_is_408(at_once: bytes, slowly: bytes) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=short_settings(request_s=0.5)) as poise:
        began_s = asyncio.get_running_loop().time()
        got = await trickle(poise, at_once, slowly)
        assert got.status == 408
        assert 0.4 < got.pieces[0][0] - began_s < 1.5
        error = error_of(got)
        assert "0.5" in str(error["message"])
        assert replica.requests == []
        assert poise.counters.refusals == {error["code"]: 1}


async def test_a_request_that_stops_is_408_and_others_are_not_held_up() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=short_settings(request_s=0.3)) as poise:
        callers = [await poise.client() for _ in range(20)]
        for caller in callers:
            await caller.send(GOOD[:-5])
        assert (await poise.ask(GOOD)).status == 200
        assert {(await caller.answer()).status for caller in callers} == {408}
        assert len(replica.requests) == 1


async def test_an_idle_connection_is_closed_in_silence() -> None:
    settings = short_settings(request_s=0.3, keep_alive_s=0.3)
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=settings) as poise:
        unused, used = await poise.client(), await poise.client()
        assert (await used.ask(GOOD)).status == 200
        for caller in (unused, used):
            await caller.wire.wait_closed()
            assert caller.wire.received == b"" or caller.wire.received.startswith(b"HTTP/1.1 408")


async def test_a_connection_is_kept_while_its_requests_follow_each_other() -> None:
    settings = short_settings(request_s=0.4, keep_alive_s=0.4)
    async with ScriptedReplica(answers()) as replica, gateway(replica, settings=settings) as poise:
        caller = await poise.client()
        for _ in range(6):
            assert (await caller.ask(GOOD)).status == 200
            await asyncio.sleep(0.15)


async def test_a_caller_that_stops_reading_its_answer_is_given_up() -> None:
    async with ScriptedReplica(echoes(), keeps_bodies=True) as replica:
        async with gateway(replica, settings=short_settings(request_s=0.5)) as poise:
            caller = await poise.client(receive_buffer_bytes=4096)
            caller.stop_reading()
            await caller.send(request("/v1/embeddings", bytes(20_000_000)))
            await replica.request()
            await until(lambda: poise.counters.in_flight == 0, "the request to be given up", within_s=5)


# -- memory


async def test_bodies_that_do_not_fit_together_are_503_and_fit_later() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await gate.wait()
        await answers()(exchange)

    body = CHAT.request_body(stream=False, padding="x" * 700_000)
    limits = {"body_bytes": 1_000_000, "buffered_bytes": 1_000_000}
    async with ScriptedReplica(script) as replica, gateway(replica, settings=short_settings(limits=limits)) as poise:
        first = await poise.client()
        await first.send(request(body=body))
        await replica.request()
        for sent in (request(body=body), request(body=[body[:300_000], body[300_000:]])):
            got = await poise.ask(sent)
            assert got.status == 503
            assert int(got.value("retry-after") or b"0") >= 1
            assert error_of(got)["code"]
        assert len(replica.requests) == 1
        gate.set()
        assert (await first.answer()).status == 200
        await until(lambda: poise.counters.buffered_bytes == 0, "the body to be let go")
        assert (await poise.ask(request(body=body))).status == 200


@pytest.mark.parametrize("target", ["/nope", "/health", "/v1/models"])
async def test_a_body_that_only_the_gateway_saw_is_let_go(target: str) -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"buffered_bytes": 1_000_000})) as poise:
            caller = await poise.client()
            for _ in range(5):
                got = await caller.ask(request(target, bytes(300_000)))
                assert got.status in (404, 405)
            assert poise.counters.buffered_bytes == 0


async def test_a_body_counts_while_it_comes_and_not_after_its_answer_has_begun() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, chunk(CHAT.output))
        await gate.wait()
        await exchange.write(*(chunk(event) for event in CHAT.events[2:]), LAST_CHUNK)

    body = CHAT.request_body(stream=True, padding="x" * 500_000)
    whole = request(body=body)
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(whole[:-1])
        await until(lambda: poise.counters.buffered_bytes > 490_000, "the body to be counted")
        await caller.send_more(whole[-1:])
        answer = await caller.head()
        await answer.event()
        assert poise.counters.buffered_bytes == 0
        gate.set()
        await answer.finish()
