"""A WebSocket handshake is passed on, and from then on bytes go both ways as they come, until either side ends."""

import asyncio
from random import Random

import pytest

from support.gateway import gateway, short_settings
from support.http_bytes import answer, cuts, head
from support.raw_client import RawClient
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import hangs, writes
from support.transcript import assert_same_bytes
from support.wire import PeerGone, until

HANDSHAKE = head(
    "GET /v1/realtime?model=m HTTP/1.1",
    [
        ("Host", "x"), ("Upgrade", "websocket"), ("Connection", "keep-alive, Upgrade"), ("X-Tag", "a"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="), ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Protocol", "realtime"),
    ],
)  # fmt: skip
ACCEPTED = head(
    "HTTP/1.1 101 Switching Protocols",
    [
        ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ("Sec-WebSocket-Protocol", "realtime"),
    ],
)  # fmt: skip


async def accepts_and_echoes(exchange: Exchange) -> None:
    """Accept, then send back what comes until the peer closes."""
    await exchange.write(ACCEPTED)
    while data := await exchange.wire.take_some(1 << 20, within_s=60):
        await exchange.write(data)


async def test_the_handshake_reaches_the_replica_and_its_answer_the_caller() -> None:
    async with ScriptedReplica(accepts_and_echoes) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        got = await caller.head()
        assert got.status == 101
        assert (got.value("upgrade") or b"").lower() == b"websocket"
        assert (got.value("connection") or b"").lower() == b"upgrade"
        assert got.value("sec-websocket-accept") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert got.value("sec-websocket-protocol") == b"realtime"
        exchange = replica.requests[0]
        assert exchange.target == b"/v1/realtime?model=m"
        assert (exchange.head.value("upgrade") or b"").lower() == b"websocket"
        assert (exchange.head.value("connection") or b"").lower() == b"upgrade"
        assert exchange.head.value("sec-websocket-key") == b"dGhlIHNhbXBsZSBub25jZQ=="
        assert exchange.head.value("x-tag") == b"a"
        assert exchange.head.framing is None


async def test_bytes_go_both_ways_unaltered_in_any_cuts() -> None:
    random = Random(5)
    async with ScriptedReplica(accepts_and_echoes) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await caller.head()
        for size in (1, 100, 70_000, 1_000_000):
            data = random.randbytes(size)
            await caller.send_more(*cuts(data, *(random.randrange(size) for _ in range(5))))
            await caller.wire.wait(lambda: len(caller.wire.received) >= size, f"{size} bytes")  # noqa: B023
            assert_same_bytes(caller.wire.take(size), data)


async def test_what_the_replica_says_right_after_its_acceptance() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(
            *(cuts(ACCEPTED + b"hello", len(ACCEPTED) - 3) if exchange.number == 1 else (ACCEPTED, b"hello"))
        )
        await exchange.hang()

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        for _ in range(3):
            caller = await poise.client()
            await caller.send(HANDSHAKE)
            assert (await caller.head()).status == 101
            await caller.wire.wait(lambda: b"hello" in caller.wire.received, "the greeting")  # noqa: B023


async def test_a_silent_connection_is_kept_past_every_limit() -> None:
    limits = dict.fromkeys(("first_output_s", "idle_s", "total_s", "hold_s", "request_s", "keep_alive_s"), 0.3)
    async with (
        ScriptedReplica(accepts_and_echoes) as replica,
        gateway(replica, settings=short_settings(**limits)) as poise,
    ):
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await caller.head()
        await asyncio.sleep(0.9)
        await caller.send_more(b"still there?")
        await caller.wire.wait(lambda: b"there?" in caller.wire.received, "the echo")


@pytest.mark.parametrize("end", [RawClient.close, RawClient.reset], ids=["fin", "reset"])
async def test_the_callers_end_reaches_the_replica(end) -> None:
    async with ScriptedReplica(accepts_and_echoes) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await caller.head()
        end(caller)
        await replica.requests[0].wire.wait_closed(within_s=1)
        await poise.settled(within_s=1)


@pytest.mark.parametrize("end", [Exchange.fin, Exchange.reset], ids=["fin", "reset"])
async def test_the_replicas_end_reaches_the_caller(end) -> None:
    async with ScriptedReplica(writes(ACCEPTED, b"bye", then=end)) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await caller.head()
        await caller.wire.wait_closed(within_s=1)
        assert end is Exchange.reset or bytes(caller.wire.received) == b"bye"
        await poise.settled(within_s=1)


@pytest.mark.parametrize("slow", ["caller", "replica"])
async def test_a_slow_side_holds_the_other_up(slow: str) -> None:
    gate = asyncio.Event()
    data = Random(6).randbytes(1 << 20) * 24

    async def script(exchange: Exchange) -> None:
        await exchange.write(ACCEPTED)
        if slow == "caller":
            await exchange.write(data)
        else:
            exchange.wire.transport.pause_reading()
            await gate.wait()
            exchange.wire.transport.resume_reading()
        await exchange.hang()

    async with ScriptedReplica(script, send_buffer_bytes=1 << 16) as replica, gateway(replica) as poise:
        caller = await poise.client(receive_buffer_bytes=1 << 14)
        await caller.send(HANDSHAKE)
        await caller.head()
        exchange = replica.requests[0]
        if slow == "caller":
            caller.stop_reading()
            await until(lambda: exchange.wire.write_paused, "the replica to be held up")
            caller.read_again()
            await caller.wire.wait(lambda: len(caller.wire.received) == len(data), "all bytes")
            assert_same_bytes(caller.wire.take(len(data)), data)
        else:
            sending = asyncio.get_running_loop().create_task(caller.send_more(data), name="kit sender")
            await until(lambda: caller.wire.write_paused, "the caller to be held up")
            gate.set()
            await sending
            await exchange.wire.wait(lambda: len(exchange.wire.received) == len(data), "all bytes")
            assert_same_bytes(exchange.wire.take(len(data)), data)


async def test_a_refused_handshake_is_an_answer_like_any_other() -> None:
    async with (
        ScriptedReplica(writes(answer(403, b'{"error":{"message":"no"}}'))) as replica,
        gateway(replica) as poise,
    ):
        caller = await poise.client()
        for _ in range(2):
            got = await caller.ask(HANDSHAKE)
            assert (got.status, bytes(got.body)) == (403, b'{"error":{"message":"no"}}')


async def test_an_upgrade_to_something_else_is_declined_by_answering() -> None:
    async with ScriptedReplica(writes(answer(200, b"{}"))) as replica, gateway(replica) as poise:
        caller = await poise.client()
        sent = HANDSHAKE.replace(b"websocket", b"h2c")
        for _ in range(2):
            assert (await caller.ask(sent)).status == 200
        assert replica.requests[0].head.value("upgrade") is None


@pytest.mark.parametrize("cut", [1, len(HANDSHAKE) - 1, len(HANDSHAKE), len(HANDSHAKE) + 3])
async def test_what_the_caller_says_before_it_is_accepted_is_kept(cut: int) -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await gate.wait()
        await accepts_and_echoes(exchange)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(*cuts(HANDSHAKE + b"GET / HTTP/1.1\r\n", cut))
        await caller.send_more(b"\r\n and more")
        await replica.request()
        await asyncio.sleep(0.02)
        gate.set()
        assert (await caller.head()).status == 101
        said = b"GET / HTTP/1.1\r\n\r\n and more"
        await caller.wire.wait(lambda: len(caller.wire.received) == len(said), "the echo")
        assert caller.wire.take(100) == said


async def test_what_was_said_ahead_of_a_refusal_is_no_request() -> None:
    gate = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await gate.wait()
        await exchange.write(answer(403, b"{}"))

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await replica.request()
        await caller.send_more(HANDSHAKE)
        await asyncio.sleep(0.02)
        gate.set()
        assert (await caller.head()).status == 403
        await caller.wire.wait_closed()
        assert len(replica.requests) == 1


async def test_what_is_said_ahead_has_a_limit() -> None:
    async with ScriptedReplica(hangs) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await replica.request()
        await caller.send_more(bytes(poise.data_path.settings.limits.head_bytes), b"x")
        await caller.wire.wait_closed()
        await replica.requests[0].wire.wait_closed()


@pytest.mark.parametrize("slow", ["caller", "replica"])
async def test_a_side_that_takes_nothing_is_cut_in_the_end(slow: str) -> None:
    data = bytes(1 << 20) * 24

    async def script(exchange: Exchange) -> None:
        await exchange.write(ACCEPTED)
        if slow == "caller":
            await exchange.write(data)
        else:
            exchange.wire.transport.pause_reading()
        await exchange.hang()

    async with ScriptedReplica(script) as replica, gateway(replica, settings=short_settings(request_s=0.5)) as poise:
        caller = await poise.client(receive_buffer_bytes=1 << 14)
        await caller.send(HANDSHAKE)
        await caller.head()
        if slow == "caller":
            caller.stop_reading()
            await replica.requests[0].wire.wait_closed()
        else:
            with pytest.raises(PeerGone):
                await caller.send_more(data)
            replica.requests[0].wire.transport.resume_reading()
        await poise.settled()


async def test_a_gateway_that_stops_ends_the_tunnel_at_the_deadline() -> None:
    async with ScriptedReplica(accepts_and_echoes) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HANDSHAKE)
        await caller.head()
        stopping = asyncio.create_task(poise.data_path.close(0.5), name="kit drain")
        await asyncio.sleep(0.2)
        await caller.send_more(b"still there?")
        await caller.wire.wait(lambda: b"there?" in caller.wire.received, "the echo")
        await caller.wire.wait_closed()
        assert await stopping == 1
        assert len(poise.log.lines) == 1
