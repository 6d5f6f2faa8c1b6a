"""Every event is passed on when it comes, alone, and nobody further along the way is invited to hold it back."""

import asyncio
import shutil
from pathlib import Path

import pytest

from support.apis import DONE, chat_event
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, STREAM_HEAD, chunk, head, request
from support.raw_client import open_client
from support.scripted_replica import Exchange, ScriptedReplica
from support.wire import until

pytestmark = pytest.mark.alone

GAP_S = 0.06
COUNT = 12
ASK = request(body=b'{"model":"m","stream":true}', headers=[("Accept-Encoding", "gzip, br")])


async def paced(exchange: Exchange) -> None:
    """Events of about 250 bytes, each with its send time inside."""
    await exchange.write(STREAM_HEAD)
    for _ in range(COUNT):
        await exchange.write(chunk(chat_event({"content": "x" * 60}, sent_at_s=exchange.wire.loop.time())))
        await asyncio.sleep(GAP_S)
    await exchange.write(chunk(chat_event({"content": ""}, "stop") + DONE), LAST_CHUNK)


def sent_at_s(event: bytes) -> float:
    """The send time in an event."""
    return float(event.split(b'"sent_at_s":')[1].split(b"}")[0])


async def test_events_arrive_one_by_one_as_they_are_sent() -> None:
    async with ScriptedReplica(paced) as replica, gateway(replica) as poise:
        answer = await poise.ask(ASK)
        outputs = [(at_s, piece) for at_s, piece in answer.pieces if b"sent_at_s" in piece]
        assert [piece.count(b"data:") for _, piece in outputs] == [1] * COUNT
        delays_s = [at_s - sent_at_s(piece) for at_s, piece in outputs]
        assert sorted(delays_s)[COUNT // 2] < 0.02
        assert max(delays_s) < 0.05


async def test_the_head_forbids_buffering_caching_and_transforming() -> None:
    async with ScriptedReplica(paced) as replica, gateway(replica) as poise:
        answer = await poise.ask(ASK)
        assert answer.value("content-type") == b"text/event-stream; charset=utf-8"
        assert answer.value("x-accel-buffering") == b"no"
        cache_control = answer.value("cache-control") or b""
        assert b"no-transform" in cache_control
        assert b"no-cache" in cache_control or b"no-store" in cache_control
        assert answer.value("content-encoding") is None
        assert replica.requests[0].head.value("accept-encoding") == b"gzip, br"


async def test_what_the_replica_itself_says_about_buffering_is_not_said_twice() -> None:
    own = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("X-Accel-Buffering", "yes")]
    stream_head = head("HTTP/1.1 200 OK", [*own, ("Transfer-Encoding", "chunked")])

    async def script(exchange: Exchange) -> None:
        await exchange.write(stream_head, chunk(chat_event({"content": "x"}, "stop") + DONE), LAST_CHUNK)

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        answer = await poise.ask(ASK)
        assert answer.value("x-accel-buffering") == b"no"
        assert answer.value("cache-control")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
async def test_behind_nginx_as_it_comes(tmp_path: Path) -> None:
    async with ScriptedReplica(paced) as replica, gateway(replica) as poise:
        socket_path = tmp_path / "nginx.sock"
        config = tmp_path / "nginx.conf"
        config.write_text(
            f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log; events {{}}\n"
            f"http {{ access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;\n"
            f"fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;\n"
            f"server {{ listen unix:{socket_path};\n"
            f"location / {{ proxy_pass http://127.0.0.1:{poise.port}; proxy_http_version 1.1; }} }} }}\n"
        )
        nginx = await asyncio.create_subprocess_exec("nginx", "-c", str(config), "-e", f"{tmp_path}/error.log")
        try:
            await until(socket_path.exists, "nginx to listen")
            caller = await open_client(socket_path)
            await caller.send(ASK)
            answer = await caller.answer()
            arrivals_s = [at_s - sent_at_s(piece) for at_s, piece in answer.pieces if b"sent_at_s" in piece]
            assert len(arrivals_s) == COUNT
            assert arrivals_s[0] < 0.6
            assert sorted(arrivals_s)[COUNT // 2] < 0.05
            caller.close()
        finally:
            nginx.terminate()
            await nginx.wait()
