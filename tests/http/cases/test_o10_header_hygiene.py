"""What belongs to one connection stays on it, and everything else gets through, in order, both ways."""

import pytest

from poise.routing.model_names import ModelNames
from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, chunk, head, request, to_json
from support.http_reading import Framing
from support.raw_client import RawClient
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, streams, writes

BODY = CHAT.request_body(stream=False)
ERROR = b'{"error":{"message":"no such thing","type":"BadRequestError","param":null,"code":400}}'
ANSWER = head(
    "HTTP/1.1 400 Bad Request",
    [
        ("Date", "Mon, 30 Nov 2026 20:50:07 GMT"), ("Connection", "keep-alive, X-Answer-Hop"), ("X-Answer-Hop", "1"),
        ("Keep-Alive", "timeout=5"), ("Proxy-Authenticate", "Basic"), ("Upgrade", "h2c"),
        ("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/"), ("Content-Type", "application/json"),
        ("Transfer-Encoding", "chunked"),
    ],
) + chunk(ERROR[:30]) + chunk(ERROR[30:]) + LAST_CHUNK  # fmt: skip
REQUEST = head(
    "POST /v1/chat/completions HTTP/1.1",
    [
        ("Host", "api.example.test"), ("Connection", "keep-alive, X-Drop-Me"), ("X-Drop-Me", "1"),
        ("Keep-Alive", "timeout=5"), ("TE", "trailers"), ("Proxy-Authorization", "Basic YQ=="), ("Upgrade", "h2c"),
        ("Proxy-Connection", "keep-alive"), ("Trailer", "X-Sum"), ("X-Tag", "a"), ("X-Tag", "b"),
        ("Authorization", "Bearer sk-engine"), ("User-Agent", "a caller/1.0"), ("Content-Type", "application/json"),
        ("Transfer-Encoding", "chunked"),
    ],
) + chunk(BODY[:11]) + chunk(BODY[11:]) + b"0\r\nX-Sum: 1\r\n\r\n"  # fmt: skip
HOP_BY_HOP = (
    "connection", "keep-alive", "te", "proxy-authorization", "proxy-connection", "upgrade", "trailer", "x-drop-me",
    "x-sum", "proxy-authenticate", "x-answer-hop",
)  # fmt: skip


async def test_at_the_replica() -> None:
    async with ScriptedReplica(writes(ANSWER)) as replica, gateway(replica) as poise:
        await poise.ask(REQUEST)
        seen = replica.requests[0].head
        assert {name: seen.values(name) for name in HOP_BY_HOP if seen.values(name)} == {}
        assert seen.values("x-tag") == [b"a", b"b"]
        assert seen.value("host") == f"127.0.0.1:{replica.port}".encode()
        assert seen.value("authorization") == b"Bearer sk-engine"
        assert seen.value("user-agent") == b"a caller/1.0"
        assert seen.value("content-type") == b"application/json"
        assert seen.framing in (Framing.LENGTH, Framing.CHUNKED)
        assert replica.requests[0].body == BODY


async def test_at_the_caller() -> None:
    async with ScriptedReplica(writes(ANSWER)) as replica, gateway(replica) as poise:
        got = await poise.ask(REQUEST)
        assert (got.status, bytes(got.body), got.complete) == (400, ERROR, True)
        assert got.head.framing is not None
        assert got.head.values("set-cookie") == [b"a=1; Path=/", b"b=2; Path=/"]
        assert {name: got.head.values(name) for name in HOP_BY_HOP[1:] if got.head.values(name)} == {}
        assert got.value("content-type") == b"application/json"
        assert got.value("date") == b"Mon, 30 Nov 2026 20:50:07 GMT"
        assert got.value("x-poise-replica") == b"r1"
        assert str(replica.port).encode() not in got.head.raw


@pytest.mark.parametrize("alias", ["m", "a-name-much-longer-than-the-models"])
@pytest.mark.parametrize("sent_in_chunks", [True, False])
async def test_a_model_of_another_length_has_a_fitting_length_header(alias: str, sent_in_chunks: bool) -> None:
    model = "the-name-of-the-model-at-the-replica"
    body = to_json({"messages": [{"role": "user", "content": '"model":"m"'}], "model": alias, "max_tokens": 64})
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        poise.data_path.names = ModelNames({alias: [(model, 1)]}, {})
        got = await poise.ask(request(body=[body[:11], body[11:]] if sent_in_chunks else body))
        seen = replica.requests[0]
        assert got.status == 200
        assert seen.body == body.replace(to_json({"model": alias})[1:-1], to_json({"model": model})[1:-1])
        assert seen.head.values("content-length") == [str(len(seen.body)).encode()]
        assert seen.head.values("transfer-encoding") == []
        assert replica.garbage == []


async def test_three_hundred_headers_in_order() -> None:
    headers = [(f"X-Number-{number % 50}", f"value {number}") for number in range(300)]
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        await poise.ask(request(body=BODY, headers=headers))
        wanted = [(name.encode(), value.encode()) for name, value in headers]
        assert [pair for pair in replica.requests[0].head.headers if pair[0].lower().startswith(b"x-number")] == wanted


async def test_values_are_bytes_and_stay_as_they_are() -> None:
    odd = request(body=BODY, headers=[("X-Odd", "caf\xe9  two  spaces\ttab"), ("X-Empty", ""), ("x-lower", "1")])
    answer = b"HTTP/1.1 200 OK\r\nX-Odd: caf\xe9\r\nX-Empty:\r\nContent-Length: 2\r\n\r\n{}"
    async with ScriptedReplica(writes(answer)) as replica, gateway(replica) as poise:
        got = await poise.ask(odd)
        seen = replica.requests[0].head
        assert seen.value("x-odd") == b"caf\xe9  two  spaces\ttab"
        assert seen.value("x-empty") == b""
        assert (b"x-lower", b"1") in seen.headers
        assert got.value("x-odd") == b"caf\xe9"
        assert got.value("x-empty") == b""


@pytest.mark.parametrize("given", [None, "req-7", "x" * 100])
async def test_a_request_id_is_kept_or_made_and_the_same_on_both_sides(given: str | None) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=BODY, headers=[("X-Request-Id", given)] if given else []))
        seen = replica.requests[0].head.value("x-request-id")
        assert seen and seen == got.value("x-request-id")
        assert given is None or seen == given.encode()


@pytest.mark.parametrize("given", ["x" * 5000, "bad\x01id", "ünïcode"])
async def test_an_unusable_request_id_is_replaced(given: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=BODY, headers=[("X-Request-Id", given)]))
        if got.status == 400:
            assert replica.requests == []
            return
        seen = replica.requests[0].head.value("x-request-id")
        assert seen and seen == got.value("x-request-id") and len(seen) <= 200 and seen.isascii()


async def test_the_query_arrives_as_it_was_sent() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        await poise.ask(request("/v1/chat/completions?x=%2F&x=2&&y=a+b%20c;d?e", BODY))
        assert replica.requests[0].target == b"/v1/chat/completions?x=%2F&x=2&&y=a+b%20c;d?e"


async def test_a_caller_of_http_1_0_gets_no_chunks() -> None:
    for script, whole in ((streams(), CHAT.whole), (writes(ANSWER), ERROR)):
        async with ScriptedReplica(script) as replica, gateway(replica) as poise:
            got = await poise.ask(request(body=BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert got.value("transfer-encoding") is None
            assert (bytes(got.body), got.complete) == (whole, True)


@pytest.mark.parametrize("header", [("Connection", "close"), ("connection", "Close, X-Other")])
async def test_a_caller_who_wants_the_connection_closed_gets_that(header: tuple[str, str]) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller: RawClient = await poise.client()
        got = await caller.ask(request(body=BODY, headers=[header]))
        assert got.complete and (got.value("connection") or b"").lower() == b"close"
        await caller.wire.wait_closed()


async def test_a_body_that_ends_with_the_connection_is_framed_for_the_caller() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b'{"id":', b'"1"}')
        exchange.fin()

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            got = await caller.ask(request(path, BODY))
            assert (bytes(got.body), got.complete) == (b'{"id":"1"}', True)
            assert got.head.framing is not None
