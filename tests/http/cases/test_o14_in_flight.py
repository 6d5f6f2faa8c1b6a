"""What is in flight comes back to nothing, however requests end, and what follows is spread evenly."""

import asyncio
from random import Random

from poise.routing.policies.least_requests import LeastRequests
from support.apis import CHAT
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import STREAM_HEAD, chunk, request
from support.raw_client import RawClient
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, closes, hangs
from support.wire import until

LEAVES, LEAVES_MIDSTREAM, DROPPED, FINISHES, REFUSED = "leaves", "leaves midstream", "dropped", "finishes", "refused"
MIXED = [LEAVES] * 100 + [LEAVES_MIDSTREAM] * 50 + [DROPPED] * 50 + [FINISHES] * 50
HELD_S = 0.6


async def by_kind(exchange: Exchange) -> None:
    """Does what the request's kind needs."""
    if b"midstream" in exchange.body:
        await exchange.write(STREAM_HEAD, chunk(CHAT.output))
        await exchange.hang()
    elif b"held" in exchange.body:
        await asyncio.sleep(HELD_S)
        await answers()(exchange)
    else:
        await (hangs if b"leaves" in exchange.body else closes if b"dropped" in exchange.body else answers())(exchange)


async def live(poise: Gateway, kind: str) -> None:
    """One request from its beginning to its end."""
    caller: RawClient = await poise.client()
    await caller.send(request(body=CHAT.request_body(stream=kind == LEAVES_MIDSTREAM, user=kind)))
    if kind == LEAVES:
        await asyncio.sleep(0.05)
    elif kind == LEAVES_MIDSTREAM:
        await (await caller.head()).event()
    else:
        assert (await caller.answer()).status == (200 if kind == FINISHES else 502)
    caller.close()


async def sample(poise: Gateway, seen: set[int]) -> None:
    while True:
        seen |= {poise.counters.in_flight, *(replica.in_flight for replica in poise.fleet)}
        await asyncio.sleep(0.05)


async def test_three_hundred_requests_leave_nothing_and_thirty_more_are_spread_evenly() -> None:
    kinds = MIXED.copy()
    Random(14).shuffle(kinds)
    settings = short_settings(retry={"attempts": 1}, connect_s=0.5)
    async with ScriptedReplica(by_kind) as one, ScriptedReplica(by_kind) as two, ScriptedReplica(by_kind) as three:
        replicas = (one, two, three)
        async with gateway(*replicas, settings=settings, policy=LeastRequests()) as poise:
            seen: set[int] = set()
            sampling = asyncio.get_running_loop().create_task(sample(poise, seen), name="kit sampling")
            await asyncio.gather(*(live(poise, kind) for kind in kinds))
            for replica in replicas:
                await replica.die()
            await asyncio.gather(*(live(poise, REFUSED) for _ in range(50)))
            await poise.settled(within_s=1)
            for replica in replicas:
                await replica.come_back()
            assert min(seen) >= 0
            assert sum(poise.counters.requests.values()) == 300
            await until(lambda: not poise.data_path.clients, "callers to be forgotten")
            held = [poise.ask(request(body=CHAT.request_body(stream=False, user="held"))) for _ in range(30)]
            answered = asyncio.gather(*held)
            await until(lambda: poise.counters.in_flight == 30, "all to be sent")
            assert all(9 <= replica.in_flight <= 11 for replica in poise.fleet)
            assert {got.status for got in await answered} == {200}
            await poise.settled(within_s=1)
            sampling.cancel()
