"""A busy replica may miss probes; a frozen one is taken out though its health page says 200."""

import asyncio

from poise.core.replica import ReplicaState
from poise.health.breaker import BreakerState
from poise.health.settings import BreakerSettings, HealthSettings
from support.apis import CHAT
from support.gateway import gateway, short_settings
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, chunk, request
from support.raw_client import RawClient
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, engine, hangs, streams
from support.wire import until

STREAM = request(body=CHAT.request_body(stream=True))
PLAIN = request(body=CHAT.request_body(stream=False))
OFTEN = HealthSettings(interval_s=0.1, timeout_s=0.1, failures=3, slow_start_s=0.0)
EVENTS = 30


async def flows(exchange: Exchange) -> None:
    """A stream of 3 s."""
    await exchange.write(STREAM_HEAD, chunk(CHAT.begun))
    for _ in range(EVENTS):
        await asyncio.sleep(0.1)
        await exchange.write(chunk(CHAT.output))
    await exchange.write(chunk(CHAT.ending), LAST_CHUNK)


async def late(exchange: Exchange) -> None:
    """Answers long after the probe's deadline."""
    await asyncio.sleep(0.8)
    await answers()(exchange)


async def test_a_busy_replica_that_misses_probes_stays_in_and_no_stream_is_cut() -> None:
    async with ScriptedReplica(engine(flows, health=late)) as busy, ScriptedReplica(engine(streams())) as other:
        async with gateway(busy, other, health=OFTEN) as poise:
            callers = [await poise.client() for _ in range(10)]
            for caller in callers:
                await caller.send(STREAM)
            replica = poise.replica("r1")
            await until(lambda: replica.in_flight == 10, "the streams to begin")
            reading = asyncio.gather(*(caller.answer() for caller in callers))
            most_missed = 0
            while not reading.done():
                most_missed = max(most_missed, replica.condition.probes.missed)
                assert replica.available or replica.in_flight == 0
                await asyncio.sleep(0.02)
            assert most_missed > OFTEN.failures
            whole = b"".join([CHAT.begun, *[CHAT.output] * EVENTS, CHAT.ending])
            assert all(bytes(got.body) == whole for got in await reading)
            await until(lambda: replica.state is ReplicaState.UNHEALTHY, "misses to count when nothing flows")


async def test_a_replica_whose_health_page_is_fine_but_that_never_answers_is_taken_out() -> None:
    limit = BreakerSettings(failures=3, open_s=30.0)
    settings = short_settings(first_output_s=0.3)
    async with ScriptedReplica(engine(hangs)) as frozen, ScriptedReplica(engine(answers())) as other:
        async with gateway(frozen, other, health=OFTEN, breaker=limit, settings=settings) as poise:
            for number in range(1, 6):
                assert (await poise.ask(PLAIN)).status == 200
                chats = [exchange for exchange in frozen.requests if exchange.target == b"/v1/chat/completions"]
                assert len(chats) == min(number, limit.failures)
            replica = poise.replica("r1")
            assert (replica.condition.breaker.state, replica.available) == (BreakerState.OPEN, False)
            assert replica.condition.probes.missed == 0


class Freezable:
    """A script that can be stopped as SIGSTOP does: connections are taken, nothing is ever said."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.running.set()

    async def __call__(self, exchange: Exchange) -> None:
        await self.running.wait()
        if exchange.target != b"/v1/chat/completions":
            await answers()(exchange)
            return
        await exchange.write(STREAM_HEAD, chunk(CHAT.begun))
        while True:
            await self.running.wait()
            await exchange.write(chunk(CHAT.output))
            await asyncio.sleep(0.02)


async def test_a_stopped_process_is_found_and_comes_back() -> None:
    script = Freezable()
    settings = short_settings(first_output_s=1.0, idle_s=1.0)
    async with ScriptedReplica(script) as frozen, ScriptedReplica(engine(streams())) as other:
        async with gateway(frozen, other, health=OFTEN, settings=settings) as poise:
            callers: list[RawClient] = [await poise.client() for _ in range(3)]
            for caller in callers:
                await caller.send(STREAM)
            answers_begun = [await caller.head() for caller in callers]
            replica = poise.replica("r1")
            await until(lambda: replica.in_flight == 3, "the streams to begin")
            script.running.clear()
            for begun in answers_begun:
                await begun.finish()
                assert b"replica_timeout" in begun.body
            await until(lambda: replica.state is ReplicaState.UNHEALTHY, "the probes to be missed")
            assert (await poise.ask(STREAM)).value("x-poise-replica") == b"r2"
            script.running.set()
            await until(lambda: replica.condition.good, "a probe to be answered")
            caller = await poise.client()
            await caller.send(STREAM)
            assert (await caller.head()).value("x-poise-replica") == b"r1"
            caller.close()
