"""A request is refused for its size only above the configured limit, early, in words; below it, nobody else waits."""

import asyncio
import hashlib
import json

import pytest

from support.apis import CHAT
from support.gateway import gateway, short_settings
from support.http_bytes import LAST_CHUNK, answer, chunk, head, request, to_json
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers
from support.transcript import assert_same_bytes
from support.wire import PeerGone

pytestmark = pytest.mark.alone

SMALL = request(body=CHAT.request_body(stream=False))
LIMIT = 100_000


def image_request(size_bytes: int) -> bytes:
    """A chat request with an image of about so many bytes in it."""
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": ""}}]
    frame = to_json({"model": "m", "messages": [{"role": "user", "content": parts}]})
    return frame.replace(b'"url":""', b'"url":"data:image/png;base64,%b"' % (b"iVBORw0K" * (size_bytes // 8)))


def slices(data: bytes, size: int = 1 << 16) -> list[bytes]:
    """`data` in pieces of `size`."""
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_fifty_megabytes_arrive_and_nobody_waits_for_them(chunked: bool) -> None:
    body = image_request(50 * 1024 * 1024)
    digest = hashlib.sha256(body).hexdigest()
    async with ScriptedReplica(answers(), keeps_bodies=False) as replica, gateway(replica) as poise:
        other = await poise.client("other")
        await other.ask(SMALL)
        done = asyncio.Event()

        async def others() -> list[float]:
            took_s: list[float] = []
            while not done.is_set():
                began_s = other.wire.loop.time()
                assert (await other.ask(SMALL)).status == 200
                took_s.append(other.wire.loop.time() - began_s)
            return sorted(took_s)

        measuring = asyncio.get_running_loop().create_task(others(), name="kit others")
        caller = await poise.client("large")
        if chunked:
            whole = request(body=[])[: -len(LAST_CHUNK)]
            await caller.send(whole, *map(chunk, slices(body)), LAST_CHUNK)
        else:
            whole = request(body=body)
            await caller.send(*slices(whole))
        got = await caller.answer()
        done.set()
        took_s = await measuring
        assert got.status == 200
        large = next(exchange for exchange in replica.requests if exchange.body_bytes > 1_000_000)
        assert (large.body_bytes, large.body_sha256) == (len(body), digest)
        assert took_s[len(took_s) * 9 // 10] < 0.05
        assert took_s[-1] < 0.3


@pytest.mark.parametrize("by_length", [True, False], ids=["length", "chunked"])
async def test_above_the_limit(by_length: bool) -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"body_bytes": LIMIT})) as poise:
            caller = await poise.client()
            if by_length:
                line = ("Content-Length", str(LIMIT + 1))
                await caller.send(head("POST /v1/chat/completions HTTP/1.1", [("Host", "x"), line]))
            else:
                await caller.send(request(body=[b"x" * 4096])[: -len(LAST_CHUNK)])
                try:
                    for _ in range(LIMIT // 4096 + 20):
                        await caller.send_more(chunk(b"x" * 4096))
                except PeerGone:
                    pass
            got = await caller.answer(within_s=1)
            assert got.status == 413
            error = json.loads(got.body)["error"]
            assert str(LIMIT) in error["message"] and error["type"] and error["code"]
            await caller.wire.wait_closed()
            assert replica.connections == 0
            assert poise.counters.refusals == {error["code"]: 1}
            assert [line.status for line in poise.log.lines] == [413]
            assert poise.counters.buffered_bytes == 0


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_the_limit_itself_is_allowed(chunked: bool) -> None:
    body = b'{"model":"m","x":"'.ljust(LIMIT - 2, b"x") + b'"}'
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"body_bytes": LIMIT})) as poise:
            got = await poise.ask(request(body=slices(body, 999) if chunked else body))
            assert got.status == 200
            assert_same_bytes(replica.requests[0].body, body)


async def test_a_caller_that_does_not_stop_sending_still_reads_why() -> None:
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"body_bytes": LIMIT})) as poise:
            caller = await poise.client()
            await caller.send(request(body=b"x" * (LIMIT * 20)))
            assert (await caller.answer()).status == 413


async def test_a_caller_that_waits_for_leave_gets_it_at_once() -> None:
    body = CHAT.request_body(stream=False)
    waiting = request(body=body, headers=[("Expect", "100-continue")])[: -len(body)]
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for number in (1, 2):
            await caller.send(waiting)
            await caller.wire.wait(lambda: b"\r\n\r\n" in caller.wire.received, "leave to send", within_s=0.5)
            await caller.send_more(body)
            got = await caller.answer()
            assert [interim.first_line.split()[1] for interim in got.interim] == [b"100"]
            assert (got.status, replica.requests[number - 1].body) == (200, body)
            assert replica.requests[number - 1].head.value("expect") is None


async def test_a_caller_that_does_not_wait_for_leave() -> None:
    whole = request(body=CHAT.request_body(stream=False), headers=[("Expect", "100-continue")])
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        assert (await poise.ask(whole)).status == 200
        assert len(replica.requests) == 1


@pytest.mark.parametrize(
    ("target", "length", "status"), [("/v1/chat/completions", LIMIT + 1, 413), ("/metrics", 10, 404)]
)
async def test_no_leave_for_what_will_be_refused(target: str, length: int, status: int) -> None:
    lines = [("Host", "x"), ("Content-Length", str(length)), ("Expect", "100-continue")]
    async with ScriptedReplica(answers()) as replica:
        async with gateway(replica, settings=short_settings(limits={"body_bytes": LIMIT})) as poise:
            caller = await poise.client()
            await caller.send(head(f"POST {target} HTTP/1.1", lines))
            got = await caller.answer(within_s=0.5)
            assert (got.status, got.interim) == (status, [])
            assert replica.connections == 0


async def test_an_answer_that_comes_before_the_body_was_read() -> None:
    refusal = to_json({"error": {"message": "too much", "type": "x", "code": 413}})

    async def script(exchange: Exchange) -> None:
        await exchange.write(answer(413, refusal, headers=[("Connection", "close")]))
        await exchange.read_body()
        exchange.fin()

    async with ScriptedReplica(script, answers_early=True) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=image_request(8_000_000)))
        assert (got.status, bytes(got.body)) == (413, refusal)
