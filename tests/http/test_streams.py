"""Many streams at once, slow readers among them: each is held to its own caller's pace, and to nobody else's."""

import asyncio
import gc
import hashlib
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from poise.core.request import Outcome
from support.apis import CHAT, DONE, chat_event
from support.gateway import gateway, short_settings
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, answer, chunk, request
from support.raw_client import Answer, RawClient
from support.scripted_replica import Exchange, ScriptedReplica
from support.transcript import assert_same_bytes
from support.wire import until

pytestmark = pytest.mark.alone

STREAMS = 1000
SLOW = 50
ROUNDS = 6
ASK = request(body=CHAT.request_body(stream=True))
FILLING = chat_event({"content": "x" * 30_000})
ENDING = chat_event({"content": ""}, "stop") + DONE
WRITE_BUFFER_BOUND_BYTES = 1 << 20
"""More than a read (256 KiB) and a high-water mark (64 KiB) together: what a transport may hold for a slow peer."""


def gateways_transports(*kits_own: Iterable[Any]) -> list[Any]:
    """Every open TCP transport in the process but the kit's."""
    own = {id(transport) for transports in kits_own for transport in transports}
    found = [thing for thing in gc.get_objects() if type(thing).__name__ == "TCPTransport"]
    return [transport for transport in found if id(transport) not in own and not transport.is_closing()]


class Fleetwide:
    """A replica's script that writes to all of its streams at the test's word."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.ends = asyncio.Event()

    async def script(self, exchange: Exchange) -> None:
        """Begin a stream and wait for the test to end it."""
        await exchange.write(STREAM_HEAD, chunk(CHAT.output))
        self.exchanges.append(exchange)
        await self.ends.wait()
        await exchange.wire.wait_writable(within_s=60)
        await exchange.write(chunk(ENDING), LAST_CHUNK)

    def say(self, event: bytes, exchanges: Iterable[Exchange]) -> None:
        """Write the event to each, waiting for nobody."""
        for exchange in exchanges:
            if not exchange.wire.write_paused:
                exchange.wire.transport.write(chunk(event))


async def open_stream(poise: Any, *, receive_buffer_bytes: int | None = None) -> tuple[RawClient, Answer]:
    """A caller that has its stream's first event."""
    caller = await poise.client(receive_buffer_bytes=receive_buffer_bytes)
    await caller.send(ASK)
    answer = await caller.head(within_s=30)
    await answer.event()
    return caller, answer


async def open_streams(poise: Any, count: int, **options: int) -> list[tuple[RawClient, Answer]]:
    """So many of them, fifty at a time."""
    opened: list[tuple[RawClient, Answer]] = []
    while len(opened) < count:
        few = min(50, count - len(opened))
        opened += await asyncio.gather(*(open_stream(poise, **options) for _ in range(few)))
    return opened


@pytest.mark.timeout(180)
async def test_a_thousand_streams_with_slow_readers_among_them() -> None:
    speaker = Fleetwide()
    loop = asyncio.get_running_loop()
    async with ScriptedReplica(speaker.script, send_buffer_bytes=1 << 15) as replica, gateway(replica) as poise:
        slow = await open_streams(poise, SLOW, receive_buffer_bytes=4096)
        slow_exchanges = list(speaker.exchanges)
        fast = await open_streams(poise, STREAMS - SLOW)
        fast_exchanges = speaker.exchanges[SLOW:]
        assert poise.counters.in_flight == STREAMS == replica.active

        async def round_s(number: int) -> float:
            """How long one event takes to all of the fast readers."""
            event = chat_event({"content": f"round {number}"})
            began_s = loop.time()
            speaker.say(event, fast_exchanges)
            for _, answer in fast:
                assert await answer.event() == event
            return loop.time() - began_s

        undisturbed_s = sorted([await round_s(number) for number in range(ROUNDS)])[ROUNDS // 2]
        for caller, _ in slow:
            caller.stop_reading()
        disturbed_s = []
        for number in range(ROUNDS):
            for _ in range(20):
                speaker.say(FILLING, slow_exchanges)
                await asyncio.sleep(0)
            disturbed_s.append(await round_s(number))
        assert all([exchange.wire.write_paused for exchange in slow_exchanges]), "slow readers were not felt upstream"
        assert sorted(disturbed_s)[ROUNDS // 2] < 3 * undisturbed_s + 0.1

        own = [wire.transport for wire in replica.wires], [caller.wire.transport for caller, _ in slow + fast]
        held_bytes = sorted(transport.get_write_buffer_size() for transport in gateways_transports(*own))
        assert len(held_bytes) >= 2 * STREAMS
        assert held_bytes[-1] < WRITE_BUFFER_BOUND_BYTES
        assert sum(held_bytes) < SLOW * WRITE_BUFFER_BOUND_BYTES // 2
        assert held_bytes[-SLOW - 1] == 0, "a fast reader's bytes are held"

        speaker.ends.set()
        for caller, _ in slow:
            caller.read_again()
        for _, answer in slow + fast:
            await answer.finish(within_s=30)
            assert answer.complete and answer.body.endswith(ENDING)
        await poise.settled()
        assert poise.outcomes == {Outcome.COMPLETED: STREAMS}


async def standstill(exchange: Exchange) -> None:
    """Come back when the replica has been unable to write for a while: the kernel's buffers take megabytes first."""
    written, quiet = -1, 0
    while quiet < 10:
        await asyncio.sleep(0.02)
        quiet = quiet + 1 if written == exchange.wire.written_bytes and exchange.wire.write_paused else 0
        written = exchange.wire.written_bytes


@pytest.mark.parametrize("kind", ["stream", "passed on as it comes", "plain"])
async def test_a_slow_reader_pauses_its_replica_and_loses_nothing(kind: str) -> None:
    block = Random(2).randbytes(1 << 19).hex().encode()
    events = [chat_event({"content": block.decode()})] * 40
    body = b"".join(events) + ENDING
    if kind == "stream":
        parts = [STREAM_HEAD, *map(chunk, events), chunk(ENDING), LAST_CHUNK]
    else:
        content_type = "audio/mpeg" if kind == "passed on as it comes" else "application/json"
        whole = answer(200, body, content_type=content_type)
        parts = [whole[start : start + 100_000] for start in range(0, len(whole), 100_000)]
    path = "/v1/audio/speech" if kind == "passed on as it comes" else "/v1/chat/completions"

    async def script(exchange: Exchange) -> None:
        await exchange.write(*parts)

    async with ScriptedReplica(script, send_buffer_bytes=1 << 16) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=1 << 14)
        await caller.send(request(path, CHAT.request_body(stream=kind == "stream")))
        got = await caller.head()
        caller.stop_reading()
        exchange = replica.requests[0]
        await standstill(exchange)
        assert exchange.wire.written_bytes < len(body) // 2
        own = [wire.transport for wire in replica.wires], [caller.wire.transport]
        held_bytes = max(transport.get_write_buffer_size() for transport in gateways_transports(*own))
        assert held_bytes < (3 << 20 if kind == "plain" else WRITE_BUFFER_BOUND_BYTES)
        caller.read_again()
        await got.finish()
        assert hashlib.sha256(got.body).digest() == hashlib.sha256(body).digest()
        assert got.complete


async def test_a_slow_reader_is_not_a_silent_replica() -> None:
    events = [FILLING] * 400

    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, *map(chunk, events), chunk(ENDING), LAST_CHUNK)

    settings = short_settings(idle_s=0.3, first_output_s=0.3, total_s=0.5)
    async with (
        ScriptedReplica(script, send_buffer_bytes=1 << 15) as replica,
        gateway(replica, settings=settings) as poise,
    ):
        caller = await poise.client(receive_buffer_bytes=4096)
        await caller.send(ASK)
        got = await caller.head()
        caller.stop_reading()
        await asyncio.sleep(1.2)
        caller.read_again()
        await got.finish()
        assert_same_bytes(got.body, b"".join(events) + ENDING)


async def test_a_slow_reader_that_leaves_frees_its_replica() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD, *map(chunk, [FILLING] * 1000), chunk(ENDING), LAST_CHUNK)

    async with ScriptedReplica(script, send_buffer_bytes=1 << 15) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=4096)
        await caller.send(ASK)
        await caller.head()
        caller.stop_reading()
        exchange = replica.requests[0]
        await until(lambda: exchange.wire.write_paused, "the replica to be held up")
        caller.reset()
        await exchange.wire.wait_closed(within_s=1)
        await poise.settled(within_s=1)
        assert poise.outcomes == {Outcome.CANCELLED: 1}


@pytest.mark.parametrize("size", [300_000, 1_500_000, 5_000_000])
async def test_a_connection_that_was_paused_for_a_slow_reader_serves_the_next_caller(size: int) -> None:
    async def script(exchange: Exchange) -> None:
        body = b"x" * (size if exchange.number == 1 else 10)
        await exchange.write(answer(200, body, content_type="audio/mpeg"))

    ask = request("/v1/audio/speech", b'{"model":"m"}')
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        slow = await poise.client(receive_buffer_bytes=4096)
        slow.stop_reading()
        await slow.send(ask)
        await replica.request(1)
        await until(lambda: replica.active == 0, "the replica to have said all")
        for _ in range(3):
            assert len((await poise.ask(ask, within_s=2)).body) == 10
        slow.read_again()
        assert len((await slow.answer()).body) == size
        assert len((await slow.ask(ask)).body) == 10


async def test_pipelined_requests_of_a_caller_that_reads_nothing_are_not_piled_up() -> None:
    body = b"x" * 2_000_000

    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(200, body, content_type="audio/mpeg"))

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=4096)
        caller.stop_reading()
        ask = request("/v1/audio/speech", b'{"model":"m"}')
        await caller.send(ask * 30, methods=(b"POST",) * 30)
        await replica.request(1)
        await asyncio.sleep(0.3)
        seen = len(replica.requests)
        assert seen < 12, "answers pile up behind a caller that does not read"
        caller.read_again()
        for _ in range(30):
            assert len((await caller.answer()).body) == len(body)


async def test_the_first_event_is_not_delayed_and_nor_is_the_head_behind_it() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(STREAM_HEAD)
        await asyncio.sleep(0.1)
        sent_at_s.append(exchange.wire.loop.time())
        await exchange.write(chunk(CHAT.output))
        await arrived.wait()
        await exchange.write(*(chunk(event) for event in CHAT.events[2:]), LAST_CHUNK)

    sent_at_s: list[float] = []
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        delays_s = []
        for _ in range(5):
            arrived = asyncio.Event()
            caller = await poise.client()
            await caller.send(ASK)
            got = await caller.head()
            assert await got.event() == CHAT.output
            delays_s.append(got.pieces[0][0] - sent_at_s[-1])
            arrived.set()
            await got.finish()
        assert sorted(delays_s)[2] < 0.02
