"""The client that gets pages from replicas, against servers that frame, delay and break their answers in every way."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from poise.core.replica import TlsFiles, parse_replica_url
from poise.telemetry import http_get
from poise.telemetry.http_get import GetError, PageGetter
from support.http_bytes import answer
from support.scripted_replica import Exchange, Script, ScriptedReplica
from support.scripts import hangs, resets, writes
from support.wire import until

PAGE = b"vllm:num_requests_running 4.0\n" * 3000
WITHIN_S = 5.0


def _getter(replica: ScriptedReplica) -> PageGetter:
    return PageGetter(parse_replica_url(f"http://127.0.0.1:{replica.port}"))


async def test_one_connection_serves_one_page_after_another() -> None:
    async with ScriptedReplica(writes(answer(200, PAGE))) as replica:
        getter = _getter(replica)
        for _ in range(5):
            assert await getter.get("/metrics?x=1", WITHIN_S) == PAGE
        getter.close()
        assert replica.connections == 1
        assert {exchange.target for exchange in replica.requests} == {b"/metrics?x=1"}
        assert replica.requests[0].head.value("host") == f"127.0.0.1:{replica.port}".encode()
        assert replica.requests[0].head.value("accept-encoding") is None
        await until(lambda: not replica.wires, "the connection is closed")


@pytest.mark.parametrize(
    "script",
    [
        writes(answer(200, PAGE), then=Exchange.fin),
        writes(answer(200, PAGE, headers=[("connection", "close")])),
        writes(answer(200, PAGE, until_close=True), then=Exchange.fin),
        writes(answer(200, [PAGE[:7], PAGE[7:40000], PAGE[40000:]], headers=[("connection", "close")])),
        writes(answer(200, [PAGE])),
        writes(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", answer(200, PAGE)),
        writes(b"HTTP/1.0 200 OK\r\n\r\n", PAGE, then=Exchange.fin),
    ],
    ids=["fin after", "says close", "until close", "chunks and close", "chunked", "early hints", "http 1.0"],
)
async def test_every_framing_gives_the_whole_page_again_and_again(script: Script) -> None:
    async with ScriptedReplica(script) as replica:
        getter = _getter(replica)
        assert [await getter.get("/metrics", WITHIN_S) == PAGE for _ in range(4)] == [True] * 4
        getter.close()


async def test_an_answer_in_single_bytes() -> None:
    whole = answer(200, [b"vllm:a 1\n", b"vllm:b 2\n"])
    async with ScriptedReplica(writes(*(whole[at : at + 1] for at in range(len(whole))))) as replica:
        getter = _getter(replica)
        assert await getter.get("/metrics", WITHIN_S) == b"vllm:a 1\nvllm:b 2\n"
        getter.close()


@pytest.mark.parametrize("end", [Exchange.fin, Exchange.reset])
async def test_a_kept_connection_that_the_server_ends_on_reuse_is_replaced(end: Callable[[Exchange], None]) -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number == 2:
            end(exchange)
        else:
            await exchange.write(answer(200, PAGE))

    async with ScriptedReplica(script) as replica:
        getter = _getter(replica)
        assert [len(await getter.get("/metrics", WITHIN_S)) for _ in range(3)] == [len(PAGE)] * 3
        getter.close()
        assert replica.connections == 2


async def test_a_connection_is_not_used_after_it_was_idle_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "KEEP_IDLE_S", 0.0)
    async with ScriptedReplica(writes(answer(200, PAGE))) as replica:
        getter = _getter(replica)
        for _ in range(3):
            await getter.get("/metrics", WITHIN_S)
        getter.close()
        assert replica.connections == 3


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (writes(answer(404, b"{}")), "the answer is 404"),
        (writes(answer(307, b"", headers=[("location", "/m")])), "the answer is 307"),
        (writes(answer(204, b"")), "the answer is 204"),
        (writes(answer(200, b"x", headers=[("content-encoding", "gzip")])), "encoded.*gzip"),
        (writes(b"SSH-2.0-OpenSSH_9.6 Debian\r\n"), "not HTTP"),
        (writes(answer(200, PAGE)[:5000], then=Exchange.fin), "ended before the answer did"),
        (writes(answer(200, PAGE)[:5000], then=Exchange.reset), "ended before the answer did"),
        (writes(answer(200, [PAGE])[:-5], then=Exchange.fin), "ended before the answer did"),
        (writes(then=Exchange.fin), "ended without an answer"),
        (resets, "ended without an answer"),
        (hangs, "no answer within 0.1 s"),
        (writes(answer(200, bytes(5 * 1024 * 1024))), "larger than 4194304 bytes"),
        (writes(answer(200, [bytes(1024 * 1024)] * 5)), "larger than 4194304 bytes"),
    ],
)
async def test_what_is_no_page_is_an_error_that_says_why_and_leaves_no_connection(script: Script, said: str) -> None:
    async with ScriptedReplica(script) as replica:
        getter = _getter(replica)
        for _ in range(2):
            with pytest.raises(GetError, match=said):
                await getter.get("/metrics", 0.1 if "within" in said else WITHIN_S)
        getter.close()
        await until(lambda: not replica.wires, "the connections are closed")


async def test_a_server_that_recovers_is_read_again() -> None:
    async def script(exchange: Exchange) -> None:
        if exchange.number < 3:
            await exchange.hang()
        await exchange.write(answer(200, PAGE))

    async with ScriptedReplica(script) as replica:
        getter = _getter(replica)
        for _ in range(2):
            with pytest.raises(GetError, match="no answer"):
                await getter.get("/metrics", 0.05)
        assert await getter.get("/metrics", WITHIN_S) == PAGE
        getter.close()


async def test_a_refused_connection_is_an_error_without_the_address() -> None:
    async with ScriptedReplica(hangs) as replica:
        getter = _getter(replica)
    with pytest.raises(GetError, match="no connection: Connection refused") as caught:
        await getter.get("/metrics", WITHIN_S)
    assert str(replica.port) not in str(caught.value)


async def test_a_cancelled_get_leaves_no_connection() -> None:
    async with ScriptedReplica(hangs) as replica:
        task = asyncio.create_task(_getter(replica).get("/metrics", WITHIN_S))
        await replica.request()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not replica.wires, "the connection is closed")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for loopback, and its key."""
    paths = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=replica", "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1],
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return paths


async def test_https_with_a_given_trust_store_and_without(certificate: tuple[Path, Path]) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            if await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer(200, PAGE))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served)
    address = parse_replica_url(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    trusting = PageGetter(replace(address, tls_files=TlsFiles(ca_file=str(certificate[0]))))
    assert [await trusting.get("/metrics", WITHIN_S) == PAGE for _ in range(2)] == [True, True]
    trusting.close()
    with pytest.raises(GetError, match=r"(?i)no connection: .*certificate.verify.failed"):
        await PageGetter(address).get("/metrics", WITHIN_S)
    server.close()
    await server.wait_closed()
