"""Where a request goes after a first replica has failed it."""

from poise.core.replica import ReplicaAddress, ReplicaSpec
from support.apis import CHAT, DONE
from support.gateway import gateway
from support.http_bytes import request
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, answers_error, in_turn, streams

ASK = request(body=CHAT.request_body(stream=False))


async def test_a_replica_that_joined_in_a_failed_ones_place_has_not_been_tried() -> None:
    async def leaves_and_refuses(exchange: Exchange) -> None:
        poise.fleet.leave("r1")
        poise.fleet.join(ReplicaSpec("newcomer", ReplicaAddress("127.0.0.1", newcomer.port)))
        await answers_error(503)(exchange)

    async with ScriptedReplica(answers()) as newcomer, ScriptedReplica(leaves_and_refuses) as leaving:
        async with gateway(leaving) as poise:
            got = await poise.ask(ASK)
            assert (got.status, got.value("x-poise-replica")) == (200, b"newcomer")


async def test_a_stale_connection_of_a_replica_that_leaves_strands_nobody() -> None:
    async def leaves_and_closes(exchange: Exchange) -> None:
        poise.fleet.leave("r1")
        poise.fleet.join(ReplicaSpec("newcomer", ReplicaAddress("127.0.0.1", newcomer.port)))
        exchange.fin()

    async with ScriptedReplica(answers()) as newcomer:
        async with ScriptedReplica(in_turn(answers(), leaves_and_closes)) as leaving, gateway(leaving) as poise:
            for expected in (b"r1", b"newcomer"):
                got = await poise.ask(ASK)
                assert (got.status, got.value("x-poise-replica")) == (200, expected)
            assert leaving.connections == 1 and len(leaving.requests) == 2


async def test_a_stream_that_only_ends_is_no_answer() -> None:
    async with ScriptedReplica(streams(DONE)) as empty, ScriptedReplica(streams()) as good:
        async with gateway(empty, good) as poise:
            got = await poise.ask(request(body=CHAT.request_body(stream=True)))
            assert (bytes(got.body), got.value("x-poise-replica")) == (CHAT.whole, b"r2")
