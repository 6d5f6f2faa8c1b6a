"""What arrives is what was sent, both ways, however it is framed and wherever the network cuts it.

`POISE_FUZZ_EXCHANGES` sets the number of random exchanges.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from poise.core.request import Outcome
from support.apis import CHAT, DONE, chat_event
from support.fuzz import FuzzedExchange, chunked_head, fuzzed_exchange, odd_chunks, random_body, random_pieces
from support.gateway import Gateway, gateway
from support.http_bytes import answer, cuts, request, single_bytes
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import echoes, writes
from support.transcript import assert_same_bytes

EXCHANGES = int(os.environ.get("POISE_FUZZ_EXCHANGES", "10000"))
LANES = 24
BODY = '{"model":"m","messages":[{"role":"user","content":"中\r\n"}]}'.encode()
PLAIN = b'{"choices":[{"index":0,"message":{"content":"\xe4\xb8\xad"}}]}\r\n\r\n0\r\n\r\n'
STREAM = chat_event({"content": "中"}) + b": note\n\n" + chat_event({"content": "🙂"}, "stop") + DONE


# -- every position

REQUESTS = {
    "length": request(body=BODY),
    "chunked": request(body=[BODY[:9], BODY[9:]]),
    "odd chunks": chunked_head("/v1/chat/completions") + odd_chunks([BODY[:9], BODY[9:]], Random(3)),
}


@pytest.mark.parametrize("framing", REQUESTS)
async def test_a_request_cut_at_every_position(framing: str) -> None:
    whole = REQUESTS[framing]
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for position in range(1, len(whole)):
            got = await caller.ask(*cuts(whole, position))
            assert got.status == 200, position
            assert_same_bytes(got.body, BODY, f"the body of the request cut at {position}")
        assert (await caller.ask(*single_bytes(whole))).status == 200
        assert {exchange.body for exchange in replica.requests} == {BODY}


ANSWERS = {
    "plain, length": (answer(200, PLAIN), PLAIN),
    "plain, chunked": (answer(200, [PLAIN[:9], PLAIN[9:]]), PLAIN),
    "plain, until close": (answer(200, PLAIN, until_close=True), PLAIN),
    "stream, length": (answer(200, STREAM, content_type="text/event-stream"), STREAM),
    "stream, chunked": (answer(200, [STREAM[:99], STREAM[99:]], content_type="text/event-stream"), STREAM),
    "stream, until close": (answer(200, STREAM, content_type="text/event-stream", until_close=True), STREAM),
    "error, chunked": (answer(422, [PLAIN]), PLAIN),
    "passed on as it comes": (answer(200, [PLAIN[:9], PLAIN[9:]], content_type="audio/mpeg"), PLAIN),
    "after 100 Continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, PLAIN), PLAIN),
    "odd chunks": (answer(200, [])[:-5] + odd_chunks([PLAIN[:9], PLAIN[9:]], Random(3)), PLAIN),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_cut_at_every_position(kind: str) -> None:
    whole, body = ANSWERS[kind]
    path = "/v1/audio/speech" if kind == "passed on as it comes" else "/v1/chat/completions"

    async def script(exchange: Exchange) -> None:
        position = int(exchange.head.value("x-cut") or b"0")
        await exchange.write(*(cuts(whole, position) if position else single_bytes(whole)))
        if "until close" in kind:
            exchange.fin()

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for position in range(len(whole)):
            got = await caller.ask(request(path, BODY, headers=[("X-Cut", str(position))]))
            assert got.complete, position
            assert_same_bytes(got.body, body, f"the body of the answer cut at {position}")
        assert Outcome.FAILED not in poise.outcomes


# -- pipelining


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def script(exchange: Exchange) -> None:
        # Later requests would be answered sooner, were they sent at once to different connections.
        await asyncio.sleep(0.02 if exchange.number % 4 == 1 else 0)
        await exchange.write(answer(200, exchange.body, content_type="text/plain"))

    bodies = [f"request {number}".encode() * (number % 7) for number in range(60)]
    parts = [request("/tokenize", body if number % 2 else [body[:3], body[3:]]) for number, body in enumerate(bodies)]
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(b"".join(parts), methods=(b"POST",) * len(parts))
        for body in bodies:
            assert_same_bytes((await caller.answer()).body, body)
        assert [exchange.body for exchange in replica.requests] == bodies


async def test_two_pipelined_requests_cut_at_every_position() -> None:
    both = request(body=BODY) + request("/v1/embeddings", [BODY[:5], BODY[5:]])
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for position in range(1, len(both)):
            await caller.send(*cuts(both, position), methods=(b"POST", b"POST"))
            assert [bytes((await caller.answer()).body) for _ in range(2)] == [BODY, BODY], position


async def test_pipelined_requests_to_gateway_and_replica_keep_their_order() -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.01)
        await exchange.write(answer(200, b'{"from":"replica"}'))

    parts = [request(body=BODY), request("/health", method="GET"), request(body=BODY), request("/nope", method="GET")]
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(b"".join(parts), methods=(b"POST", b"GET", b"POST", b"GET"))
        answers = [await caller.answer() for _ in parts]
        assert [got.status for got in answers] == [200, 200, 200, 404]
        assert bytes(answers[0].body) == bytes(answers[2].body) == b'{"from":"replica"}'


async def test_a_bad_request_behind_good_ones_does_not_cost_them_their_answers() -> None:
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(request(body=BODY) * 3 + b"NOT HTTP\r\n\r\n", methods=(b"POST",) * 4)
        assert [(await caller.answer()).status for _ in range(4)] == [200, 200, 200, 400]
        await caller.wire.wait_closed()


async def test_empty_lines_before_a_request_are_forgiven() -> None:
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for _ in range(2):
            await caller.send(b"\r\n" + request(body=BODY), methods=(b"POST",))
            assert (await caller.answer()).status == 200


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_are_not_given_one(status: int) -> None:
    whole = b"HTTP/1.1 %d X\r\nETag: 1\r\n\r\n" % status
    async with ScriptedReplica(writes(whole)) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for _ in range(2):
            got = await caller.ask(request("/v1/embeddings", BODY))
            assert (got.status, got.head.framing) == (status, None)
            assert caller.wire.received == b""


@pytest.mark.parametrize("body", [b"", [], [b""]], ids=repr)
async def test_empty_bodies(body) -> None:
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        got = await poise.ask(request("/v1/embeddings", body))
        assert (got.status, bytes(got.body), got.complete) == (200, b"", True)


# -- random exchanges


async def play(exchange: Exchange) -> None:
    """The replica's side of a random exchange."""
    plan = fuzzed_exchange(int(exchange.head.value("x-seed") or b"0"))
    assert_same_bytes(exchange.body, plan.request_body, f"the request of seed {plan.seed}")
    exchange.body = b""
    await exchange.write(*plan.answer_parts)
    if plan.ends_with_close:
        exchange.fin()


async def ask_in_turn(poise: Gateway, plans: list[FuzzedExchange]) -> None:
    """The caller's side: some plans on one connection, some of them pipelined."""
    caller = await poise.client()
    random = Random(plans[0].seed)
    while plans:
        together = [plans.pop() for _ in range(min(len(plans), random.choice((1, 1, 1, 2, 5))))]
        parts = [part for plan in together for part in plan.request_parts]
        await caller.send(*parts, methods=(b"POST",) * len(together))
        for plan in together:
            got = await caller.answer()
            assert (got.status, got.complete) == (plan.status, True), f"seed {plan.seed}"
            assert_same_bytes(got.body, plan.answer_body, f"the answer of seed {plan.seed}")
    caller.wire.fin()


async def in_lanes(seeds: list[int], ask: Callable[[list[int]], Awaitable[None]]) -> None:
    """Deal the seeds out to lanes that run at once, a few seeds at a time."""

    async def lane(mine: list[int]) -> None:
        while mine:
            await ask([mine.pop() for _ in range(min(len(mine), 6))])

    await asyncio.gather(*(lane(seeds[number::LANES]) for number in range(LANES)))


@pytest.mark.timeout(600)
async def test_random_exchanges() -> None:
    async with ScriptedReplica(play) as replica, gateway(replica) as poise:
        await in_lanes(
            list(range(EXCHANGES)), lambda seeds: ask_in_turn(poise, [fuzzed_exchange(seed) for seed in seeds])
        )
        assert len(replica.requests) == EXCHANGES
        assert poise.counters.stale_connections == 0


async def test_random_chunkings_of_requests() -> None:
    async with ScriptedReplica(echoes()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for seed in range(300):
            random = Random(seed)
            body = random_body(random)[:5000]
            whole = chunked_head("/v1/embeddings") + odd_chunks(random_pieces(body, random), random)
            got = await caller.ask(*cuts(whole, *(random.randrange(len(whole)) for _ in range(6))))
            assert_same_bytes(got.body, body, f"the body of seed {seed}")


async def test_a_stream_is_framed_anew_but_not_held_back() -> None:
    async with ScriptedReplica(writes(answer(200, [STREAM], content_type="text/event-stream"))) as replica:
        async with gateway(replica) as poise:
            got = await poise.ask(request(body=CHAT.request_body(stream=True)))
            assert sum(got.chunk_sizes) == len(STREAM)
