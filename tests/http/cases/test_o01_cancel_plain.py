"""A caller that hangs up, at whatever moment, is felt by the replica at once and costs nobody anything."""

import asyncio

import pytest

from poise.core.request import Outcome
from support.apis import APIS, CHAT
from support.gateway import gateway, short_settings
from support.http_bytes import STREAM_HEAD, answer, chunk, request, to_json
from support.raw_client import RawClient
from support.scripted_replica import Exchange, Script, ScriptedReplica, closed_port
from support.scripts import answers, hangs
from support.wire import until


def begins_and_hangs(*parts: bytes) -> Script:
    """Write part of an answer, then nothing more."""

    async def script(exchange: Exchange) -> None:
        await exchange.write(*parts)
        await exchange.hang()

    return script


PLAIN_HEAD = answer(200, to_json(CHAT.plain))[:-40]

MOMENTS = {
    "nothing has come": (hangs, False),
    "a plain answer is half there": (begins_and_hangs(PLAIN_HEAD), False),
    "a stream's head has come": (begins_and_hangs(STREAM_HEAD), True),
    "only comments have come": (begins_and_hangs(STREAM_HEAD, chunk(b": keep-alive\n\n")), True),
    "output has come": (begins_and_hangs(STREAM_HEAD, chunk(CHAT.output)), True),
    "half an event has come": (begins_and_hangs(STREAM_HEAD, chunk(CHAT.output[:20])), True),
}


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset], ids=["fin", "reset"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_the_replica_sees_its_peer_close(moment: str, leave) -> None:
    script, stream = MOMENTS[moment]
    async with ScriptedReplica(script) as first, ScriptedReplica(answers()) as second, gateway(first, second) as poise:
        caller = await poise.client()
        await caller.send(request(body=CHAT.request_body(stream=stream)))
        exchange = await first.request()
        if moment == "output has come":
            await (await caller.head()).event()
        else:
            await until(lambda: exchange.wire.written_bytes > 0 or script is hangs, "the replica's part")
        left_at_s = asyncio.get_running_loop().time()
        leave(caller)
        assert await exchange.wire.wait_closed() - left_at_s < 1
        await poise.settled(within_s=1)
        assert second.requests == []
        assert poise.outcomes == {Outcome.CANCELLED: 1}
        replica = poise.fleet.named("r1")
        assert replica is not None and replica.outcomes[Outcome.FAILED] == 0


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_fifty_at_once(api) -> None:
    async with ScriptedReplica(hangs) as first, ScriptedReplica(answers()) as second, gateway(first, second) as poise:
        callers = [await poise.client() for _ in range(50)]
        for caller in callers:
            await caller.send(request(api.path, api.request_body(stream=False)))
        exchanges = [await first.request(number) for number in range(1, 51)]
        left_at_s = asyncio.get_running_loop().time()
        for caller in callers:
            caller.close()
        closed_at_s = [await exchange.wire.wait_closed() for exchange in exchanges]
        assert max(closed_at_s) - left_at_s < 1
        await poise.settled(within_s=1)
        assert second.requests == []
        assert poise.outcomes == {Outcome.CANCELLED: 50}
        assert poise.counters.requests[api.route, Outcome.CANCELLED] == 50


async def test_those_who_leave_the_queue_of_a_full_replica_never_reach_it() -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        limited = poise.fleet.named("r1")
        assert limited is not None
        limited.max_concurrency = 8
        callers = [await poise.client() for _ in range(50)]
        for caller in callers:
            await caller.send(request(body=CHAT.request_body(stream=False)))
        await replica.request(8)
        await until(lambda: poise.counters.in_flight == 50, "all to be taken up")
        assert len(replica.requests) == 8
        for caller in callers[:42:-1] + callers[:43]:
            caller.close()
        await poise.settled(within_s=1)
        assert replica.most_active <= 8
        for exchange in replica.requests:
            await exchange.wire.wait_closed()
        assert poise.outcomes == {Outcome.CANCELLED: 50}


async def test_leaving_before_the_request_is_whole_reaches_nobody() -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        whole = request(body=CHAT.request_body(stream=False))
        for position in (1, 30, len(whole) - 1):
            caller = await poise.client()
            await caller.send(whole[:position])
            await until(lambda: poise.counters.client_connections == 1, "the connection to be counted")
            caller.close()
            await until(lambda: poise.counters.client_connections == 0, "the connection to be forgotten")
        assert replica.connections == 0


async def test_leaving_while_the_replica_is_being_connected_to() -> None:
    with closed_port() as sock:
        sock.listen(0)
        full = [asyncio.open_connection("127.0.0.1", sock.getsockname()[1]) for _ in range(2)]
        held = [await asyncio.wait_for(connection, 2) for connection in full[:1]]
        full[1].close()
        async with gateway(sock.getsockname()[1], settings=short_settings(connect_s=8)) as poise:
            caller = await poise.client()
            await caller.send(request(body=CHAT.request_body(stream=False)))
            await until(lambda: poise.counters.in_flight == 1, "the request to be taken up")
            caller.close()
            await poise.settled(within_s=1)
            assert poise.outcomes == {Outcome.CANCELLED: 1}
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
