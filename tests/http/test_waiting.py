"""Requests that find no room wait at the gateway, in order, within limits, and are lost to nobody."""

import asyncio
import json
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from poise.admission.api_key import ApiKey
from poise.core.decision import Decision, Send, Wait
from poise.core.reading import LoadReading
from poise.core.request import Outcome, RequestFacts
from poise.routing.policy import FleetView
from support.apis import CHAT
from support.fleets import REQUEST
from support.gates import Gate, bearer, ring
from support.gateway import Gateway, InOrder, gateway, short_settings
from support.http_bytes import request
from support.raw_client import RawClient
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, answers_error, hangs, in_turn, streams
from support.wire import until

BODY = CHAT.request_body(stream=False)


def numbered(number: int, headers: Sequence[tuple[str, str]] = (), *, stream: bool = False) -> bytes:
    return request(body=CHAT.request_body(stream=stream, number=number), headers=list(headers))


def numbers(gate: Gate) -> list[int]:
    return [json.loads(body)["number"] for body in gate.order]


async def sent(poise: Gateway, *requests: bytes) -> list[RawClient]:
    """A caller for each request, which has been sent and either waits or is at a replica."""
    callers = []
    for one in requests:
        before = taken_up(poise)
        callers.append(await poise.client())
        await callers[-1].send(one)
        await until(lambda before=before: taken_up(poise) > before, "the request to be taken up")
    return callers


def taken_up(poise: Gateway) -> int:
    return poise.counters.in_flight + sum(poise.counters.requests.values())


def waiting(poise: Gateway) -> int:
    return poise.data_path.waiting.queue.length


async def test_a_cap_holds_at_every_instant_and_everybody_is_answered() -> None:
    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.01 * (exchange.number % 5))
        await answers()(exchange)

    async with ScriptedReplica(script) as first, ScriptedReplica(script) as second:
        async with gateway(first, second, caps=3) as poise:
            got = await asyncio.gather(*(poise.ask(numbered(number)) for number in range(100)))
            assert {answer.status for answer in got} == {200}
            assert first.most_active == second.most_active == 3
            assert poise.counters.queue_wait_s.count > 0


async def test_an_automatic_cap_holds_in_tokens_and_lets_the_largest_through_alone() -> None:
    gate, held, largest_alone = Gate(), 0, []

    async def script(exchange: Exchange) -> None:
        nonlocal held
        tokens = json.loads(exchange.body)["tokens"]
        held += tokens
        assert held <= 800 or exchange.active == 1, "0.8 of 1000, or one alone"
        if tokens > 800:
            largest_alone.append(exchange.active == 1)
        await gate(exchange)
        held -= tokens

    def sized(tokens: int) -> bytes:
        message = {"role": "user", "content": "x" * 4 * (tokens - 64)}
        return request(
            body=json.dumps({"model": "m", "messages": [message], "max_tokens": 64, "tokens": tokens}).encode()
        )

    async with ScriptedReplica(script) as replica, gateway(replica, caps="auto") as poise:
        (r1,) = poise.fleet
        poise.fleet.scrape_began(r1)
        poise.fleet.scraped(r1, LoadReading(kv_capacity_tokens=1000), asyncio.get_running_loop().time())
        sizes = [300, 300, 100, 900, 100, 500, 200, 1500, 64]
        callers = await sent(poise, *map(sized, sizes))
        assert waiting(poise) == 6, "nobody passes the one that needs the replica to itself"
        for count in range(len(sizes)):
            gate.let_go()
            await until(lambda count=count: sum(poise.outcomes.values()) > count, "one to be answered")
        assert [(await caller.answer()).status for caller in callers] == [200] * len(sizes)
        assert largest_alone == [True, True]


async def test_those_who_wait_go_in_order_and_a_newcomer_does_not_overtake() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=2) as poise:
        callers = await sent(poise, *map(numbered, range(8)))
        assert waiting(poise) == 6
        for released in range(1, 7):
            gate.let_go()
            await until(lambda released=released: len(gate.order) == 2 + released, "the next to be sent")
        gate.open()
        assert [(await caller.answer()).status for caller in callers] == [200] * 8
        assert numbers(gate) == list(range(8))
        assert replica.most_active == 2


async def test_a_newcomer_in_the_round_that_made_room_goes_behind_those_who_wait() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1) as poise:
        first, *others = await sent(poise, *map(numbered, range(3)))
        await first.send(numbered(3))  # pipelined: it starts in the very moment in which its predecessor has ended
        gate.let_go()
        await until(lambda: len(gate.order) == 2, "the next to be sent")
        gate.open()
        for caller in (first, *others, first):
            assert (await caller.answer()).status == 200
        assert numbers(gate) == [0, 1, 2, 3]
        assert replica.most_active == 1


async def test_a_caller_who_hangs_up_while_waiting_is_gone_at_once() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1) as poise:
        first, leaves, stays = await sent(poise, *map(numbered, range(3)))
        leaves.wire.transport.abort()
        await until(lambda: waiting(poise) == 1, "the caller to be forgotten", within_s=0.5)
        gate.open()
        assert (await first.answer()).status == (await stays.answer()).status == 200
        assert numbers(gate) == [0, 2]
        assert poise.outcomes == {Outcome.COMPLETED: 2, Outcome.CANCELLED: 1}
        assert len(replica.requests) == 2


async def test_a_full_queue_is_429_and_says_when_to_come_back() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica:
        async with gateway(replica, caps=1, settings=short_settings(limits={"queue": 2})) as poise:
            callers = await sent(poise, *map(numbered, range(3)))
            got = await poise.ask(numbered(9))
            assert got.status == 429 and int(got.value("retry-after") or b"0") >= 1
            assert error_of(got)["code"] == "queue_full"
            assert poise.counters.refusals == {"queue_full": 1}
            gate.open()
            assert [(await caller.answer()).status for caller in callers] == [200] * 3
            assert 9 not in numbers(gate)


@pytest.mark.parametrize("stream", [False, True])
async def test_higher_priority_goes_first_and_sheds_the_youngest_of_the_lowest(stream: bool) -> None:
    gate = Gate()
    settings = short_settings(limits={"queue": 3}, hold_s=0.1 if stream else 8.0)
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1, settings=settings) as poise:
        priority = [[("X-Poise-Priority", str(value))] for value in (0, -1, 0, -1, 5)]
        callers = await sent(poise, *(numbered(n, headers, stream=stream) for n, headers in enumerate(priority[:4])))
        if stream:
            await until(lambda: bytes(callers[3].wire.received).count(b": waiting") == 1, "a comment")
        urgent = await poise.client()
        await urgent.send(numbered(4, priority[4], stream=stream))
        shed = await callers[3].answer()
        assert shed.status == (200 if stream else 429)
        assert b'"shed"' in shed.body
        assert poise.counters.sheds == 1
        gate.open()
        for caller in (urgent, *callers[:3]):
            assert (await caller.answer()).status == 200
        assert numbers(gate) == [0, 4, 2, 1]
        assert all(b"x-poise-priority" not in one.head.raw.lower() for one in replica.requests)


async def test_a_priority_that_is_no_number_is_400() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        for wrong in ("high", "", "1.5", "101"):
            got = await poise.ask(request(body=BODY, headers=[("X-Poise-Priority", wrong)]))
            assert (got.status, error_of(got)["code"]) == (400, "bad_priority")
        assert replica.requests == []


async def test_a_key_with_a_flood_does_not_hold_up_another() -> None:
    gate = Gate()
    keys = ring(ApiKey("flood"), ApiKey("quiet"))
    settings = short_settings(limits={"queue": 50})
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=2, keys=keys, settings=settings) as poise:
        flood = await sent(poise, *(numbered(number, bearer("flood")) for number in range(52)))
        quiet = await sent(poise, *(numbered(100 + number, bearer("quiet")) for number in range(3)))
        assert waiting(poise) == 50
        for released in range(1, 9):
            gate.let_go()
            await until(lambda released=released: len(gate.order) == 2 + released, "the next to be sent")
        assert [number for number in numbers(gate)[2:8] if number >= 100] == [100, 101, 102], "every other turn"
        gate.open()
        assert {(await caller.answer()).status for caller in quiet} == {200}
        statuses = [(await caller.answer()).status for caller in flood]
        assert statuses.count(429) == 3 and statuses[-3:] == [429] * 3, "the flood's own youngest gave way"


async def test_no_room_in_time_is_429_and_no_replica_at_all_503() -> None:
    settings = short_settings(limits={"queue_timeout_s": 0.3})
    async with ScriptedReplica(hangs) as replica, gateway(replica, caps=1, settings=settings) as poise:
        (first,) = await sent(poise, numbered(0))
        began_s = asyncio.get_running_loop().time()
        got = await poise.ask(numbered(1))
        assert 0.25 < asyncio.get_running_loop().time() - began_s < 1.0
        assert (got.status, error_of(got)["code"]) == (429, "queue_timeout")
        assert int(got.value("retry-after") or b"0") >= 1
        first.wire.transport.abort()
        await until(lambda: not replica.active, "the replica to be let go")
        poise.fleet.drain("r1")
        got = await poise.ask(numbered(2))
        assert (got.status, error_of(got)["code"]) == (503, "no_replica")
        assert int(got.value("retry-after") or b"0") >= 1


async def test_high_kv_usage_makes_requests_wait_until_a_scrape_says_otherwise() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        (r1,) = poise.fleet

        def scraped(kv: float) -> None:
            poise.fleet.scrape_began(r1)
            poise.fleet.scraped(r1, LoadReading(kv_usage_ratio=kv), asyncio.get_running_loop().time())

        scraped(0.9)
        callers = await sent(poise, *map(numbered, range(3)))
        assert waiting(poise) == 3 and replica.requests == []
        assert poise.data_path.is_ready, "busy is not broken"
        scraped(0.5)
        assert {(await caller.answer()).status for caller in callers} == {200}


async def test_a_retry_goes_before_newcomers() -> None:
    gate = Gate()
    async with ScriptedReplica(answers_error(500)) as bad, ScriptedReplica(gate) as good:
        async with gateway(bad, good, caps=1) as poise:
            good_slot = poise.fleet.named("r2")
            assert good_slot is not None
            blocker = poise.fleet.dispatch(good_slot.slot, REQUEST, 0.0)
            (retried,) = await sent(poise, numbered(0))
            await until(lambda: waiting(poise) == 1, "the retry to wait")
            poise.fleet.drain("r1")
            newcomers = await sent(poise, numbered(1, [("X-Poise-Priority", "9")]), numbered(2))
            assert waiting(poise) == 3
            gate.open()
            poise.fleet.settle(blocker, Outcome.COMPLETED, 1.0)
            assert {(await caller.answer()).status for caller in (retried, *newcomers)} == {200}
            assert numbers(gate) == [0, 1, 2]
            assert len(bad.requests) == 1


async def test_a_waiting_stream_gets_comments_in_every_stage() -> None:
    async with ScriptedReplica(in_turn(hangs, streams())) as replica:
        async with gateway(replica, caps=1, settings=short_settings(hold_s=0.15)) as poise:
            (first,) = await sent(poise, numbered(0))
            caller = await poise.client()
            await caller.send(numbered(1, stream=True))
            answer = await caller.head()
            assert [await answer.event(), await answer.event()] == [b": waiting for the replica\n\n"] * 2
            assert answer.status == 200 and waiting(poise) == 1
            first.wire.transport.abort()
            await answer.finish()
            assert bytes(answer.body).endswith(CHAT.whole)


async def test_those_who_wait_are_served_or_told_so_when_the_gateway_stops() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1) as poise:
        callers = await sent(poise, *map(numbered, range(4)))
        stopping = asyncio.get_running_loop().create_task(poise.data_path.close(1.0), name="kit stopping")
        gate.let_go()
        await until(lambda: len(gate.order) == 2, "the next to be sent")
        gate.let_go()
        assert await stopping == 2
        got = [await caller.answer() for caller in callers]
        assert [answer.status for answer in got] == [200, 200, 503, 503]
        assert all(answer.value("retry-after") for answer in got[2:])
        assert replica.most_active == 1


async def test_a_policy_with_reasons_of_its_own_to_wait_is_asked_again() -> None:
    """Nothing changes in the fleet, so that nothing wakes those who wait: they are asked at every tick."""

    class NotYet(InOrder):
        ready = False

        def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
            return super().choose(request, fleet, now_s, tried) if self.ready else Wait(now_s + 1, "not yet")

    policy = NotYet()
    async with ScriptedReplica(answers()) as replica, gateway(replica, policy=policy) as poise:
        callers = await sent(poise, *map(numbered, range(3)))
        assert waiting(poise) == 3 and replica.requests == []
        policy.ready = True
        assert [(await caller.answer(within_s=1)).status for caller in callers] == [200] * 3


async def test_new_limits_of_the_queue_count_for_those_who_come_and_those_who_wait() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica:
        async with gateway(replica, caps=1, settings=short_settings(limits={"queue": 5})) as poise:
            callers = await sent(poise, *map(numbered, range(4)))
            poise.data_path.apply(short_settings(limits={"queue": 2, "queue_timeout_s": 0.2}))
            assert (await poise.ask(numbered(9))).status == 429
            assert [(await caller.answer()).status for caller in callers[1:]] == [429] * 3
            gate.open()
            assert (await callers[0].answer()).status == 200
            assert numbers(gate) == [0]


async def test_limits_that_change_hold_for_the_queue_and_those_in_it() -> None:
    gate = Gate()
    async with ScriptedReplica(gate) as replica, gateway(replica, caps=1) as poise:
        first, waits = await sent(poise, *map(numbered, range(2)))
        poise.data_path.apply(short_settings(limits={"queue": 1, "queue_timeout_s": 0.2}))
        assert error_of(await poise.ask(numbered(2)))["code"] == "queue_full"
        assert error_of(await waits.answer())["code"] == "queue_timeout"
        gate.open()
        assert (await first.answer()).status == 200


@pytest.mark.parametrize("decision", [None, "r1", Send(0, 5), Send(0, "a\r\nx: y"), Send(-1, "x"), Send(7, "x")])  # type: ignore[arg-type]
async def test_a_policy_that_says_what_it_may_not_costs_its_request_alone(decision: Any) -> None:
    class Policy:
        answers: Any = None

        def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Any:
            return self.answers

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    policy = Policy()
    async with ScriptedReplica(answers()) as replica, gateway(replica, policy=policy) as poise:
        policy.answers = Wait(0.0, "not yet")
        (waits,) = await sent(poise, numbered(0))
        policy.answers = decision
        assert error_of(await waits.answer())["code"] == "policy_failed"
        assert error_of(await poise.ask(numbered(1)))["code"] == "policy_failed"
        policy.answers = Send(0, "at last")
        assert (await poise.ask(numbered(2))).status == 200
        assert [context["message"] for context in told] == ["the policy failed"] * 2
