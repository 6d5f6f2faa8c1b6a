"""A request that goes on from a stored response goes to the replica that stored it, waits for it, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from poise.core.reading import LoadReading
from support.apis import CHAT, RESPONSES, typed
from support.gates import Gate
from support.gateway import Gateway, TakeTurns, gateway
from support.http_bytes import request
from support.refusals import error_of
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.scripts import answers, answers_error, hangs, in_turn, resets, streams
from support.wire import until


def numbered(name: str) -> Script:
    """Answers as a stored response of its own, plain or streamed, as the request asks."""

    async def script(exchange: Exchange) -> None:
        value = {**RESPONSES.plain, "id": f"resp_{name}_{exchange.number}"}
        if b'"stream":true' in exchange.body:
            created = typed("response.created", {"response": {**value, "status": "in_progress"}})
            await streams(created, *RESPONSES.events[1:], api=RESPONSES)(exchange)
        else:
            await answers(200, value)(exchange)

    return script


@asynccontextmanager
async def three(**scripts: Script) -> AsyncIterator[tuple[Gateway, list[ScriptedReplica]]]:
    """A gateway over replicas a, b and c, which are taken in turn."""
    async with (
        ScriptedReplica(scripts.get("a", numbered("a"))) as a,
        ScriptedReplica(scripts.get("b", numbered("b"))) as b,
        ScriptedReplica(scripts.get("c", numbered("c"))) as c,
        gateway(a, b, c, policy=TakeTurns()) as poise,
    ):
        yield poise, [a, b, c]


def ask(previous: object = None, *, stream: bool = False) -> bytes:
    more = {} if previous is None else {"previous_response_id": previous}
    return request(RESPONSES.path, RESPONSES.request_body(stream=stream, **more))


def counts(replicas: list[ScriptedReplica]) -> list[int]:
    return [len(replica.requests) for replica in replicas]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_turn_goes_to_the_replica_of_the_last(stream: bool) -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask(stream=stream))
        for turn in range(1, 5):
            got = await poise.ask(ask(f"resp_a_{turn}", stream=stream))
            assert (got.status, got.value("x-poise-replica")) == (200, b"r1")
            assert got.value("x-poise-reason") == b"stored response"
        assert counts(replicas) == [5, 0, 0]


async def test_many_conversations_stay_apart() -> None:
    async with three() as (poise, replicas):
        for _ in range(3):
            await poise.ask(ask())
        for name in ("c", "a", "b", "c"):
            await poise.ask(ask(f"resp_{name}_1"))
        assert counts(replicas) == [2, 2, 3]


@pytest.mark.parametrize(
    ("method", "end"), [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items?limit=1")]
)
async def test_a_response_is_asked_for_where_it_is(method: str, end: str) -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask())
        for _ in range(3):
            await poise.ask(request(f"/v1/responses/resp_a_1{end}", None, method=method))
        assert counts(replicas) == [4, 0, 0]
        assert replicas[0].requests[-1].target == f"/v1/responses/resp_a_1{end}".encode()


@pytest.mark.parametrize("previous", ["resp_unknown", "", 7, None, {"id": "resp_a_1"}])
async def test_what_is_not_known_goes_anywhere(previous: object) -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask())
        assert (await poise.ask(ask(previous))).status == 200
        assert counts(replicas) == [1, 1, 0]


async def test_a_busy_replica_is_waited_for_and_nobody_else_waits_behind() -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask())
        home = poise.fleet.named("r1")
        assert home is not None
        home.available = False
        caller = await poise.client()
        await caller.send(ask("resp_a_1"))
        await asyncio.sleep(0.25)
        for _ in range(4):
            assert (await poise.ask(ask())).status == 200
        assert counts(replicas) == [1, 2, 2]
        home.available = True
        assert (await caller.answer()).value("x-poise-replica") == b"r1"


async def test_a_caller_that_leaves_while_it_waits_is_forgotten() -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask())
        home = poise.fleet.named("r1")
        assert home is not None
        home.available = False
        caller = await poise.client()
        await caller.send(ask("resp_a_1"))
        await asyncio.sleep(0.15)
        caller.close()
        await poise.settled()
        assert poise.data_path.waiting.queue.length == 0
        assert counts(replicas) == [1, 0, 0]


@pytest.mark.parametrize("how", ["leaves", "drains"])
async def test_where_the_replica_is_gone_another_one_says_so(how: str) -> None:
    async with three() as (poise, replicas):
        await poise.ask(ask())
        if how == "leaves":
            poise.fleet.leave("r1")
        else:
            poise.fleet.drain("r1")
        assert (await poise.ask(ask("resp_a_1"))).status == 200
        assert counts(replicas)[0] == 1


@pytest.mark.parametrize(("fails", "tries"), [(resets, 2), (answers_error(500), 1), (answers_error(503), 1)])
async def test_no_other_replica_is_tried(fails: Script, tries: int) -> None:
    """Nor the same one again, but for a kept connection that it may have closed before it saw the request."""

    async def script(exchange: Exchange) -> None:
        await (numbered("a") if exchange.number == 1 else fails)(exchange)

    async with three(a=script) as (poise, replicas):
        await poise.ask(ask())
        got = await poise.ask(ask("resp_a_1"))
        assert got.status >= 500 and error_of(got)
        assert counts(replicas) == [1 + tries, 0, 0]


async def test_a_caller_that_leaves_is_seen_by_the_replica() -> None:
    async def script(exchange: Exchange) -> None:
        await (numbered("a") if exchange.number == 1 else hangs)(exchange)

    async with three(a=script) as (poise, (a, *_)):
        await poise.ask(ask())
        caller = await poise.client()
        await caller.send(ask("resp_a_1"))
        seen = await a.request(2)
        caller.close()
        await seen.wire.wait_closed()


async def test_other_apis_have_no_responses_to_learn_of() -> None:
    async with ScriptedReplica(answers(200, {**CHAT.plain, "id": "resp_1"})) as replica, gateway(replica) as poise:
        await poise.ask(request(body=CHAT.request_body(stream=False)))
        assert len(poise.data_path.homes) == 0


async def test_one_who_has_to_have_its_replica_keeps_to_its_cap_in_tokens() -> None:
    gate = Gate()
    async with ScriptedReplica(in_turn(numbered("a"), gate)) as replica, gateway(replica, caps="auto") as poise:
        (r1,) = poise.fleet
        poise.fleet.scrape_began(r1)
        poise.fleet.scraped(r1, LoadReading(kv_usage_ratio=0.0, kv_capacity_tokens=500), 0.0)
        await poise.ask(ask())
        callers = [await poise.client() for _ in range(3)]
        more = {"previous_response_id": "resp_a_1", "max_output_tokens": 256}
        for caller in callers:
            await caller.send(request(RESPONSES.path, RESPONSES.request_body(stream=False, **more)))
        await until(lambda: poise.data_path.waiting.queue.length == 2, "two to wait")
        assert r1.held_tokens <= 400
        gate.open()
        assert [(await caller.answer()).status for caller in callers] == [200] * 3
