"""A kept connection that the replica has closed meanwhile costs neither an answer nor a second execution."""

import asyncio
import random
from collections.abc import Callable

import pytest

from poise.core.request import Outcome
from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import answer, request, to_json
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, resets
from support.wire import Wire, until

IDLE_S = 0.1
LANES = 20
REQUESTS_PER_LANE = 25
ASK = request(body=CHAT.request_body(stream=False))
ANSWER = answer(200, to_json(CHAT.plain))


async def converse(idle_end: Callable[[Wire], None], lane: int) -> int:
    """A conversation with pauses as long as the replica's patience; how many connections it took."""
    pauses = random.Random(lane)
    async with ScriptedReplica(answers(), idle_s=IDLE_S, idle_end=idle_end) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for _ in range(REQUESTS_PER_LANE):
            assert (await caller.ask(ASK)).status == 200
            await asyncio.sleep(pauses.uniform(0.95, 1.05) * IDLE_S)
        assert len(replica.requests) == REQUESTS_PER_LANE
        assert poise.outcomes == {Outcome.COMPLETED: REQUESTS_PER_LANE}
        assert sum(poise.counters.retries.values()) == 0
        first = poise.fleet.named("r1")
        assert first is not None and first.outcomes[Outcome.FAILED] == 0
        return replica.connections


@pytest.mark.parametrize("idle_end", [Wire.fin, Wire.reset], ids=["fin", "reset"])
async def test_five_hundred_requests_at_the_edge_of_the_idle_limit(idle_end, monkeypatch: pytest.MonkeyPatch) -> None:
    # The lanes share a process, so each cannot ask for its own sockets and tasks to be gone at its end.
    monkeypatch.setattr("support.gateway.open_sockets", lambda: 0)
    monkeypatch.setattr("support.gateway.left_tasks", lambda before: [])
    connections = await asyncio.gather(*(converse(idle_end, lane) for lane in range(LANES)))
    assert sum(connections) > LANES, "no connection was ever closed: the test did not test anything"


@pytest.mark.parametrize("end", [Exchange.fin, Exchange.reset], ids=["fin", "reset"])
async def test_a_connection_that_dies_under_the_second_request(end) -> None:
    taken_up: list[int] = []

    async def script(exchange: Exchange) -> None:
        if exchange.connection % 2 and exchange.wire.written_bytes:
            end(exchange)
        else:
            taken_up.append(exchange.number)
            await exchange.write(ANSWER)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        assert [(await caller.ask(ASK)).status for _ in range(6)] == [200] * 6
        assert len(taken_up) == 6
        assert poise.counters.stale_connections >= 1
        assert poise.outcomes == {Outcome.COMPLETED: 6}
        assert sum(poise.counters.retries.values()) == 0


async def test_a_replica_that_drops_every_connection_is_not_asked_for_ever() -> None:
    async with ScriptedReplica(resets) as replica, gateway(replica) as poise:
        answer = await poise.ask(ASK)
        assert answer.status == 502
        assert len(replica.requests) == 1


async def test_a_pool_of_dead_connections_is_given_up_at_once() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number <= 20:
            await until(lambda: replica.active == 20 or exchange.number != 20, "the others")
            await gate.wait()
            await exchange.write(ANSWER)
        elif exchange.wire.written_bytes:
            exchange.reset()
        else:
            await exchange.write(ANSWER)

    gate = asyncio.Event()
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        callers = [await poise.client() for _ in range(20)]
        for caller in callers:
            await caller.send(ASK)
        await replica.request(20)
        gate.set()
        for caller in callers:
            assert (await caller.answer()).status == 200
        answer = await poise.ask(ASK)
        assert answer.status == 200
        assert len(replica.requests) <= 22


async def test_an_answer_that_announces_the_end_of_the_connection_is_not_kept() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(200, to_json(CHAT.plain), headers=[("Connection", "close")]))
        exchange.fin()

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        assert [(await caller.ask(ASK)).status for _ in range(5)] == [200] * 5
        assert replica.connections == 5
        assert poise.counters.stale_connections == 0


async def test_a_connection_with_unasked_bytes_on_it_is_not_used_again() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.ask(ASK)
        await next(iter(replica.wires)).write(answer(200, b'{"for":"nobody"}'))
        await until(lambda: not replica.wires, "the connection to be given up")
        got = await caller.ask(ASK)
        assert bytes(got.body) == to_json(CHAT.plain)
        assert replica.connections == 2


async def test_connections_are_kept_and_used_again() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for _ in range(50):
            await caller.ask(ASK)
        assert replica.connections == 1
