"""The bytes of the head that a replica is sent: what is legal but odd arrives in its plain form, and what a caller
claims of itself, of the gateway or of the connection does not arrive at all."""

import pytest

from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, chunk, request
from support.scripted_replica import ScriptedReplica
from support.scripts import answers

BODY = CHAT.request_body(stream=False)
LINE = b"POST /v1/chat/completions HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
PLAIN = LINE + HOST + LENGTH + b"\r\n" + BODY
CHUNKED = LINE + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


async def seen_at_the_replica(sent: bytes) -> tuple[list[bytes], bytes]:
    """What one replica is sent of `sent`: the lines of the head, but for the request's id, and the body."""
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(sent, methods=(b"POST",))
        assert (await caller.answer()).status == 200
        assert replica.garbage == [] and len(replica.requests) == 1
        exchange = replica.requests[0]
        own = b"host: 127.0.0.1:%d" % replica.port
        lines = [line for line in exchange.head.raw.split(b"\r\n") if not line.startswith(b"x-request-id: ")]
        assert lines[1] == own and lines[-2:] == [b"", b""]
        return [lines[0], *lines[2:-2]], exchange.body


USUAL = [LINE[:-2], LENGTH[:-2].lower()]
ODD = {
    "plain": PLAIN,
    "empty lines ahead": b"\r\n\r\n" + PLAIN,
    "a line feed ahead": b"\n" + PLAIN,
    "two spaces in the request line": PLAIN.replace(b"POST ", b"POST  "),
    "space around a length": PLAIN.replace(LENGTH, b"Content-Length: \t  %d   \r\n" % len(BODY)),
    "a length with zeros": PLAIN.replace(b"Content-Length: ", b"Content-Length: 000"),
    "no host, as HTTP/1.0 may": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0").replace(HOST, b""),
    "HTTP/1.0 that wants to be kept": PLAIN.replace(b"1.1", b"1.0").replace(HOST, HOST + b"Connection: keep-alive\r\n"),
    "a host with nothing in it": PLAIN.replace(HOST, b"Host:\r\n"),
    "a host with a port": PLAIN.replace(HOST, b"Host: [::1]:8080\r\n"),
    "a full URL": PLAIN.replace(b"POST /", b"POST http://elsewhere:1/"),
    "a full URL with a user": PLAIN.replace(b"POST /", b"POST http://a:b@elsewhere/"),
    "an expectation nobody knows": PLAIN.replace(LENGTH, LENGTH + b"Expect: 200-ok\r\n"),
    "chunks": CHUNKED + chunk(BODY[:5]) + chunk(BODY[5:]) + LAST_CHUNK,
    "chunked in capitals": CHUNKED.replace(b"chunked", b"CHUNKED") + chunk(BODY) + LAST_CHUNK,
    "chunks in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + chunk(BODY) + LAST_CHUNK,
    "chunk extensions": CHUNKED + b'%X;a="b;c";d=e\r\n%b\r\n' % (len(BODY), BODY) + LAST_CHUNK,
    "a long chunk extension": CHUNKED + b"%x;%b\r\n%b\r\n" % (len(BODY), b"a" * 50_000, BODY) + LAST_CHUNK,
    "a chunk size with zeros": CHUNKED + b"%030x\r\n%b\r\n" % (len(BODY), BODY) + LAST_CHUNK,
    "a trailer": CHUNKED + chunk(BODY) + b"0\r\nAuthorization: x\r\nHost: y\r\nX-Session-ID: z\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
async def test_what_is_legal_but_odd_arrives_in_its_plain_form(kind: str) -> None:
    assert await seen_at_the_replica(ODD[kind]) == (USUAL, BODY)


CLAIMS = [
    "X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil", "X-FORWARDED-PROTO: https", "X-Forwarded-Port: 1",
    "X-Forwarded-Prefix: /x", "X-Forwarded-Server: x", "Forwarded: for=1.2.3.4", "X-Real-IP: 1.2.3.4",
    "x-poise-replica: r9", "X-Poise-Reason: mine", "Content_Length: 3", "content_length: 99999",
    "Transfer_Encoding: chunked", "X_Forwarded_For: 1.2.3.4", "X_API_Key: sk-1", "x_data_parallel_rank: 1",
    "Keep_Alive: 1", "Proxy_Connection: x", "TE: trailers", "Proxy-Authorization: Basic YQ==", "Keep-Alive: timeout=9",
]  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS)
async def test_what_a_caller_claims_does_not_arrive(claim: str) -> None:
    assert await seen_at_the_replica(PLAIN.replace(LENGTH, LENGTH + claim.encode() + b"\r\n")) == (USUAL, BODY)


@pytest.mark.parametrize("name", ["X-Forwarded", "Session_Id", "My_Header", "Via", "X-Forwarded-For-Fun"])
async def test_other_headers_do(name: str) -> None:
    line = f"{name}: 1".encode()
    lines, _ = await seen_at_the_replica(PLAIN.replace(LENGTH, LENGTH + line + b"\r\n"))
    assert line in lines


@pytest.mark.parametrize("connection", [
    "authorization", "close, Authorization, host, content-length", "x-request-id, X-API-Key", "transfer-encoding",
    "authorization\r\nConnection: x-api-key", "\t,, authorization ,x-api-key,",
])  # fmt: skip
async def test_connection_cannot_strip_what_the_gateway_owes_the_replica(connection: str) -> None:
    own = (
        b"Connection: " + connection.encode() + b"\r\nAuthorization: Bearer a\r\nX-API-Key: b\r\nX-Request-ID: mine\r\n"
    )
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(PLAIN.replace(LENGTH, LENGTH + own), methods=(b"POST",))
        assert (await caller.answer()).status == 200
        (exchange,) = replica.requests
        seen = exchange.head
        wanted = {"authorization": b"Bearer a", "x-api-key": b"b", "x-request-id": b"mine", "connection": None}
        assert {name: seen.value(name) for name in wanted} == wanted
        assert seen.value("content-length") == b"%d" % len(BODY)
        assert exchange.body == BODY


@pytest.mark.parametrize("rank", [["1"], ["1", "7"], ["-1"], ["x, y"]])
async def test_a_callers_rank_reaches_only_a_replica_that_is_no_rank_itself(rank: list[str]) -> None:
    sent = request(body=BODY, headers=[("X-Data-Parallel-Rank", value) for value in rank])
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        await poise.ask(sent)
        assert replica.requests[0].head.value("x-data-parallel-rank") == rank[-1].encode()
        (only,) = poise.fleet
        poise.data_path.connections(only).has_rank = True
        await poise.ask(sent)
        assert replica.requests[1].head.value("x-data-parallel-rank") is None, "its own rank is part of its head"


async def test_a_request_behind_an_unknown_coding_is_not_read() -> None:
    hostile = CHUNKED.replace(b"chunked", b"gzip, chunked") + chunk(BODY) + LAST_CHUNK
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(hostile + PLAIN, methods=(b"POST", b"POST"))
        assert (await caller.answer()).status == 501
        await caller.wire.wait_closed()
        assert caller.wire.received == b"" and replica.requests == []
