"""What a replica answers that is no HTTP, or could be read in two ways, reaches no caller and taints no other."""

import pytest

from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, answer, chunk, request, to_json
from support.refusals import error_of
from support.scripted_replica import Exchange, ScriptedReplica
from support.scripts import answers, in_turn, writes

ASK = request(body=CHAT.request_body(stream=False))
BODY = to_json(CHAT.plain)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
GOOD = HEAD + LENGTH + b"\r\n" + BODY
CHUNKS = chunk(BODY) + LAST_CHUNK
CONTROL = [*range(9), *range(11, 13), *range(14, 32), 127]

MALFORMED = {
    **{f"{byte:#04x} in a value": HEAD + LENGTH + b"X: a%cb\r\n\r\n" % byte + BODY for byte in CONTROL},
    **{f"{byte:#04x} in a name": HEAD + LENGTH + b"X%cY: 1\r\n\r\n" % byte + BODY for byte in (*CONTROL, 32, 34, 128)},
    **{
        f"the length {text!r}": HEAD + b"Content-Length: " + text + b"\r\n\r\n" + BODY
        for text in (b"-5", b"+5", b"5, 5", b"0x5", b"5.0", b"", b"9" * 40)
    },
    **{
        f"the coding {text!r}": HEAD + b"Transfer-Encoding: " + text + b"\r\n\r\n" + CHUNKS
        for text in (b"identity", b"xchunked", b"gzip, chunked", b"chunked, identity", b"chunked, chunked", b"gzip")
    },
    "two equal lengths": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "two lengths": HEAD + LENGTH + b"Content-Length: 3\r\n\r\n" + BODY,
    "length and chunks": HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
    "bare line feeds": GOOD.replace(b"\r\n", b"\n"),
    "one bare line feed": HEAD + LENGTH + b"X: 1\nY: 2\r\n\r\n" + BODY,
    "a bare carriage return": HEAD + LENGTH + b"X: 1\rY: 2\r\n\r\n" + BODY,
    "a folded header": HEAD + LENGTH + b"X: 1\r\n 2\r\n\r\n" + BODY,
    "a space before the colon": HEAD + LENGTH + b"X : 1\r\n\r\n" + BODY,
    "no head": BODY,
    "a request": ASK,
    "TLS": b"\x15\x03\x01\x00\x02\x02\x0a ",
    **{
        f"the status {text!r}": GOOD.replace(b"200", text, 1)
        for text in (b"099", b"000", b"20", b"1000", b"abc", b"-20")
    },
    "another version": GOOD.replace(b"HTTP/1.1", b"HTTP/3.0"),
    "another protocol that nobody asked for": b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + GOOD,
    "a switch to nothing": b"HTTP/1.1 101 S\r\n\r\n" + GOOD,
    "an interim answer with a body": b"HTTP/1.1 102 P\r\nContent-Length: 5\r\n\r\nhello" + GOOD,
    "a chunk size that is none": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + BODY,
    "a chunk longer than its size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + BODY + b"\r\n" + LAST_CHUNK,
    "a length in the trailer": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\nContent-Length: 3\r\n\r\n"
    ),
    "interim answers without end": b"HTTP/1.1 100 C\r\n\r\n" * 100_000 + GOOD,
    "a head without end": HEAD + LENGTH + b"X: 1\r\n" * 1_000_000 + b"\r\n" + BODY,
    "a header without end": HEAD + LENGTH + b"X: " + b"a" * 5_000_000 + b"\r\n\r\n" + BODY,
    "a reason without end": b"HTTP/1.1 200 " + b"K" * 5_000_000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
}  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
async def test_it_is_a_failure_of_the_replica_and_its_connection_is_not_used_again(kind: str) -> None:
    async with ScriptedReplica(in_turn(writes(MALFORMED[kind]), answers())) as replica, gateway(replica) as poise:
        caller = await poise.client()
        got = await caller.ask(ASK)
        assert (got.status, error_of(got)["code"]) == (502, "replica_malformed")
        assert got.head.framing is not None
        assert bytes((await caller.ask(ASK)).body) == BODY
        assert [exchange.connection for exchange in replica.requests] == [1, 2]


@pytest.mark.parametrize(
    "kind", ["two lengths", "a head without end", "a switch to nothing", "interim answers without end"]
)
async def test_another_replica_is_asked(kind: str) -> None:
    async with ScriptedReplica(writes(MALFORMED[kind])) as bad, ScriptedReplica(answers()) as good:
        async with gateway(bad, good) as poise:
            got = await poise.ask(ASK)
            assert (got.status, got.value("x-poise-replica")) == (200, b"r2")


SURPLUS = {
    "a second answer": GOOD + GOOD,
    "bytes": GOOD + b"HTTP/1.1 200 OK\r\n\r\nevil",
    "an empty chunk": GOOD + LAST_CHUNK,
}


@pytest.mark.parametrize("kind", SURPLUS)
@pytest.mark.parametrize("separate", [False, True])
async def test_what_comes_behind_an_answer_is_nobodys(kind: str, separate: bool) -> None:
    whole = SURPLUS[kind]
    parts = (whole[: len(GOOD)], whole[len(GOOD) :]) if separate else (whole,)
    async with (
        ScriptedReplica(in_turn(writes(*parts), answers(value={"own": 1}))) as replica,
        gateway(replica) as poise,
    ):
        caller = await poise.client()
        assert bytes((await caller.ask(ASK)).body) == BODY
        await replica.requests[0].wire.wait_closed()
        assert bytes((await caller.ask(request("/v1/embeddings", b"{}"))).body) == b'{"own":1}'
        assert caller.wire.received == b""


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 103 E\r\nLink: </x>\r\nContent-Length: 5\r\n\r\n"]
)
async def test_interim_answers_are_swallowed(interim: bytes) -> None:
    async with ScriptedReplica(writes(interim * 20 + GOOD)) as replica, gateway(replica) as poise:
        got = await poise.ask(ASK)
        assert (got.status, bytes(got.body), got.interim, got.value("link")) == (200, BODY, [], None)


@pytest.mark.parametrize("framing", [b"Content-Length: 5\r\n\r\nhello", b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS])
@pytest.mark.parametrize("status", [204, 304])
async def test_a_body_where_there_can_be_none_is_not_passed_on(framing: bytes, status: int) -> None:
    script = in_turn(writes(b"HTTP/1.1 %d X\r\n" % status + framing), answers())
    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        caller = await poise.client()
        got = await caller.ask(ASK)
        assert (got.status, got.head.framing, bytes(got.body)) == (status, None, b"")
        assert bytes((await caller.ask(ASK)).body) == BODY
        assert caller.wire.received == b""


async def test_a_replica_cannot_speak_for_the_gateway() -> None:
    lines = [
        ("x-poise-replica", "r9"), ("X-Poise-Reason", "mine"), ("X-Request-Id", "other"), ("Keep-Alive", "timeout=9"),
        ("Connection", "x-request-id, set-cookie, x-poise-replica"), ("Set-Cookie", "a=1"), ("Upgrade", "h2c"),
        ("Location", "http://127.0.0.1:1/"), ("Server", "engine"),
    ]  # fmt: skip
    async with ScriptedReplica(writes(answer(200, BODY, headers=lines))) as replica, gateway(replica) as poise:
        got = await poise.ask(request(body=CHAT.request_body(stream=False), headers=[("X-Request-Id", "mine")]))
        wanted = {"x-poise-replica": b"r1", "x-poise-reason": b"in order", "x-request-id": b"mine", "location": None}
        wanted |= {"set-cookie": None, "upgrade": None, "keep-alive": None, "connection": None}
        assert {name: got.value(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    "location", ["http://127.0.0.1:{port}/v1/chat/completions/", "//127.0.0.1:{port}/v1/chat/completions/"]
)
async def test_a_redirect_stays_on_the_gateway(location: str) -> None:
    async def script(exchange: Exchange) -> None:
        line = ("Location", location.format(port=exchange.replica.port))
        await exchange.write(answer(307, b"", headers=[line]))

    async with ScriptedReplica(script) as replica, gateway(replica) as poise:
        got = await poise.ask(ASK)
        assert (got.status, got.value("location")) == (307, b"/v1/chat/completions/")
        assert str(replica.port).encode() not in got.head.raw
