"""Replicas that die, come back, drain: who is sent what meanwhile, and what callers are told."""

import asyncio
import errno
import os

import pytest
from structlog.testing import capture_logs

from poise.core.replica import ReplicaState
from poise.health.breaker import BreakerState
from poise.health.probes import Probe
from poise.health.settings import BreakerSettings, HealthSettings
from poise.routing.policies.least_requests import LeastRequests
from support.apis import CHAT
from support.gateway import Gateway, gateway, short_settings
from support.http_bytes import request
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, answers_error, by_target, closes, engine, hangs, in_turn, resets, streams
from support.wire import until

PLAIN = request(body=CHAT.request_body(stream=False))
STREAM = request(body=CHAT.request_body(stream=True))
OFTEN = HealthSettings(interval_s=0.1, timeout_s=0.3, failures=3, slow_start_s=0.0)
DRAINS = answers_error(500, "cannot schedule new futures after shutdown")
FAILS = {"a death": closes, "a 500": answers_error(500)}


def chats(replica: ScriptedReplica) -> int:
    return sum(exchange.target == b"/v1/chat/completions" for exchange in replica.requests)


async def test_a_replica_that_dies_is_left_at_once_and_taken_back_when_it_answers() -> None:
    async with ScriptedReplica(engine(answers())) as first, ScriptedReplica(engine(answers())) as second:
        async with gateway(first, second, health=OFTEN) as poise:
            replica = poise.replica("r1")
            await until(lambda: replica.condition.seen, "a probe")
            await first.die()
            await until(lambda: replica.state is ReplicaState.UNHEALTHY, "its death to be seen", within_s=1)
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2"
            assert poise.counters.retries.total() == 0, "nobody had to find out"
            await first.come_back()
            await until(lambda: replica.available, "it to be taken back")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r1"


async def test_all_dead_is_said_at_once_and_with_a_time_to_come_back() -> None:
    settings = short_settings(first_output_s=8)
    async with ScriptedReplica(engine(answers())) as only, gateway(only, health=OFTEN, settings=settings) as poise:
        replica = poise.replica("r1")
        await until(lambda: replica.condition.seen, "a probe")
        await only.die()
        await until(lambda: replica.condition.out, "its death to be seen")
        got = await poise.ask(PLAIN, within_s=1)
        assert (got.status, error_of(got)["code"], got.value("retry-after")) == (503, "no_replica", b"1")
        assert not poise.data_path.is_ready
        await only.come_back()
        await until(lambda: replica.available, "it to be taken back")
        assert (await poise.ask(PLAIN)).status == 200


async def test_those_who_wait_for_room_are_told_when_the_last_replica_dies() -> None:
    async with ScriptedReplica(engine(hangs)) as only, gateway(only, health=OFTEN, caps=1) as poise:
        replica = poise.replica("r1")
        await until(lambda: replica.condition.seen, "a probe")
        callers = [await poise.client() for _ in range(4)]
        for caller in callers:
            await caller.send(PLAIN)
        await until(lambda: poise.counters.in_flight == 4, "all to be taken up")
        await only.die()
        got = [await caller.answer(within_s=2) for caller in callers]
        assert [one.status for one in got] == [502, 503, 503, 503]
        assert [one.value("retry-after") for one in got[1:]] == [b"1"] * 3, "the one that found out as well"


@pytest.mark.parametrize("how", FAILS)
async def test_one_request_tries_a_replica_that_failed(how: str) -> None:
    limit = BreakerSettings(failures=2, open_s=0.3)
    script = in_turn(FAILS[how], FAILS[how], FAILS[how], hangs, answers())
    async with ScriptedReplica(script) as first, ScriptedReplica(answers()) as second:
        async with gateway(first, second, breaker=limit) as poise:
            breaker = poise.replica("r1").condition.breaker
            for _ in range(3):
                assert (await poise.ask(PLAIN)).status == 200
            assert (breaker.state, len(first.requests)) == (BreakerState.OPEN, 2)
            await until(lambda: breaker.state is BreakerState.HALF_OPEN, "the open time to be over")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2"
            assert (breaker.state, len(first.requests)) == (BreakerState.OPEN, 3), "the trial failed"
            await until(lambda: breaker.state is BreakerState.HALF_OPEN, "the open time to be over")
            trial = await poise.client()
            await trial.send(PLAIN)
            await first.request(4)
            for _ in range(3):
                assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2", "one trial at a time"
            trial.close()
            await poise.settled()
            assert breaker.state is BreakerState.HALF_OPEN, "a caller that leaves has tried nothing"
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r1"
            assert breaker.state is BreakerState.CLOSED


async def test_a_recovered_replica_is_given_a_growing_share() -> None:
    go_on = asyncio.Event()

    async def held(exchange: Exchange) -> None:
        await go_on.wait()
        await answers()(exchange)

    async def split(poise: Gateway) -> tuple[float, int, int]:
        """The share of a, and how many of 24 requests at once a and b are sent."""
        a, b = poise.fleet
        go_on.clear()
        asked = asyncio.gather(*(poise.ask(PLAIN) for _ in range(24)))
        await until(lambda: poise.counters.in_flight == 24, "all to be sent")
        found = a.share, a.in_flight, b.in_flight
        go_on.set()
        assert {got.status for got in await asked} == {200}
        return found

    slowly = HealthSettings(interval_s=0.1, timeout_s=0.3, slow_start_s=2.0)
    async with ScriptedReplica(engine(held)) as first, ScriptedReplica(engine(held)) as second:
        async with gateway(first, second, health=slowly, policy=LeastRequests()) as poise:
            a, _ = poise.fleet
            await until(lambda: a.condition.seen, "a probe")
            await first.die()
            await until(lambda: a.condition.out, "its death to be seen")
            await first.come_back()
            await until(lambda: a.condition.good, "it to be taken back")
            found = [await split(poise)]
            while found[-1][0] < 1:
                found.append(await split(poise))
            assert all(of_a <= share * of_b + 1 for share, of_a, of_b in found)
            assert found[0][1] < 10 <= found[-1][1]


async def test_an_engine_that_drains_finishes_what_it_has_and_gets_nothing_new() -> None:
    finish = asyncio.Event()

    async def runs_on(exchange: Exchange) -> None:
        await finish.wait()
        await answers()(exchange)

    chat = in_turn(runs_on, DRAINS)
    numbered: list[Exchange] = []

    async def script(exchange: Exchange) -> None:
        numbered.append(exchange)
        exchange.number = len(numbered)
        await chat(exchange)

    async with ScriptedReplica(engine(script)) as first, ScriptedReplica(engine(answers())) as second:
        limit = BreakerSettings(open_s=0.2)
        async with gateway(first, second, health=OFTEN, breaker=limit) as poise:
            replica = poise.replica("r1")
            running = await poise.client()
            await running.send(PLAIN)
            await until(lambda: replica.in_flight == 1, "the first request")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2"
            assert replica.state is ReplicaState.DRAINING
            await until(lambda: replica.condition.breaker.state is BreakerState.HALF_OPEN, "the breaker's open time")
            for _ in range(5):
                assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2"
            assert chats(first) == 2
            finish.set()
            assert (await running.answer()).status == 200
            await first.die()
            await until(lambda: replica.state is ReplicaState.UNHEALTHY, "its end to be seen")
            first.script = engine(answers())
            await first.come_back()
            await until(lambda: replica.available, "its successor to be taken in")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r1"


async def test_the_last_one_drains_and_callers_are_told_so_at_once() -> None:
    async with ScriptedReplica(engine(DRAINS)) as only, gateway(only, health=OFTEN) as poise:
        for _ in range(2):
            got = await poise.ask(PLAIN, within_s=1)
            assert (got.status, error_of(got)["code"], got.value("retry-after")) == (503, "no_replica", b"1")
        assert chats(only) == 1


async def test_a_server_without_a_health_page_lives() -> None:
    async with ScriptedReplica(engine(streams(), health=answers(404))) as replica:
        async with gateway(replica, health=OFTEN) as poise:
            await until(lambda: sum(e.target == b"/health" for e in replica.requests) > 4, "some probes")
            assert poise.replica("r1").condition.good


@pytest.mark.parametrize("status", [500, 503])
async def test_a_health_page_that_says_it_is_ill_is_believed_where_another_is_well(status: int) -> None:
    async with ScriptedReplica(engine(answers(), health=answers(status))) as first:
        async with ScriptedReplica(engine(answers())) as second, gateway(first, second, health=OFTEN) as poise:
            await until(lambda: not poise.replica("r1").available, "it to be taken out")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r2"
            await second.die()
            await until(lambda: poise.replica("r1").available, "it to be spared, as the last")
            assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r1"


async def test_what_the_server_does_without_its_engine_says_nothing_of_the_engine() -> None:
    limit = BreakerSettings(failures=3, open_s=30.0)
    settings = short_settings(first_output_s=0.3)
    script = by_target({b"/tokenize": answers(200, {"count": 1}), b"/v1/chat/completions": hangs})
    async with ScriptedReplica(script) as frozen, ScriptedReplica(answers()) as other:
        async with gateway(frozen, other, breaker=limit, settings=settings) as poise:
            for _ in range(limit.failures):
                for _ in range(5):
                    assert (await poise.ask(request("/tokenize", b'{"prompt":"x"}'))).value("x-poise-replica") == b"r1"
                assert (await poise.ask(PLAIN, within_s=2)).value("x-poise-replica") == b"r2"
            assert poise.replica("r1").condition.breaker.state is BreakerState.OPEN


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_a_failure_that_leaves_a_doubted_replica_the_best_there_is_is_tried_there(stream: bool) -> None:
    limit = BreakerSettings(failures=1, open_s=30.0)
    fails = streams(CHAT.error_event(500), b"data: [DONE]\n\n") if stream else answers_error(500)
    async with ScriptedReplica(in_turn(fails, answers())) as first, ScriptedReplica(fails) as second:
        async with gateway(first, second, breaker=limit) as poise:
            asked = STREAM if stream else PLAIN
            assert (await poise.ask(asked)).status == 500, "by both"
            poise.replica("r2").condition.breaker.recovered(0.0)
            trial = poise.replica("r2").condition.breaker
            trial.output(trial.era, 0.0)
            poise.fleet.probed(poise.replica("r2"), Probe.WELL, 0.0)
            assert [replica.available for replica in poise.fleet] == [False, True]
            got = await poise.ask(asked)
            assert (got.status, got.value("x-poise-replica")) == (200, b"r1")


async def test_an_operator_is_told_once_of_a_replica_that_is_left_alone_and_once_of_its_return() -> None:
    limit = BreakerSettings(failures=1, open_s=0.3)
    with capture_logs() as logs:
        async with ScriptedReplica(engine(in_turn(*[answers_error(500)] * 4, answers()))) as first:
            async with ScriptedReplica(engine(answers())) as second:
                async with gateway(first, second, health=OFTEN, breaker=limit) as poise:
                    breaker = poise.replica("r1").condition.breaker
                    await until(lambda: poise.replica("r1").condition.seen, "a probe")
                    await poise.ask(PLAIN)
                    await until(lambda: breaker.state is BreakerState.HALF_OPEN, "the open time to be over")
                    first.script = engine(answers())
                    assert (await poise.ask(PLAIN)).value("x-poise-replica") == b"r1"
                    await until(lambda: any(line["event"] == "replica usable again" for line in logs), "the good news")
    told = [line for line in logs if line["event"].startswith("replica ")]
    assert [(line["event"], line["replica"]) for line in told] == [
        ("replica not usable", "r1"),
        ("replica usable again", "r1"),
    ]
    assert "breaker open" in told[0]["problem"]


async def test_doubts_of_the_only_one_that_may_know_a_model_are_ignored() -> None:
    async with ScriptedReplica(answers()) as listed, ScriptedReplica(in_turn(resets, answers())) as unlisted:
        async with gateway(listed, unlisted, breaker=BreakerSettings(failures=1, open_s=60.0)) as poise:
            poise.fleet.serves(poise.replica("r1"), ("another",))
            assert (await poise.ask(request(body=CHAT.request_body(stream=False)))).status == 502
            assert poise.replica("r2").condition.breaker.state == BreakerState.OPEN
            assert (await poise.ask(request(body=CHAT.request_body(stream=False)))).status == 200


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_a_gateway_that_can_open_no_connection_blames_no_replica(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def no_more(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    breaker, seldom = BreakerSettings(failures=1), HealthSettings(interval_s=0.1, timeout_s=0.3, failures=1)
    async with ScriptedReplica(closes) as one, ScriptedReplica(closes) as other:
        with monkeypatch.context() as patched:
            patched.setattr("poise.core.dial.Dialer.open", no_more)
            async with gateway(one, other, health=seldom, breaker=breaker) as poise:
                got = await poise.ask(PLAIN)
                said = (got.status, error_of(got)["code"], error_of(got)["fault"], got.value("retry-after"))
                assert said == (503, "gateway_exhausted", "gateway", b"1")
                await asyncio.sleep(5 * seldom.interval_s)  # more looks than may be missed
                judged = {(replica.state, replica.condition.breaker.state) for replica in poise.fleet}
                assert judged == {(ReplicaState.READY, BreakerState.CLOSED)}
        assert not one.requests and not other.requests
