"""What is not HTTP, could be read in two ways, or asks for what is not served, is refused and reaches no replica."""

import pytest

from support.apis import CHAT
from support.gateway import gateway
from support.http_bytes import LAST_CHUNK, chunk, request
from support.refusals import refused
from support.scripted_replica import ScriptedReplica
from support.scripts import answers
from support.wire import PeerGone

BODY = CHAT.request_body(stream=False)
GOOD = request(body=BODY)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"

# -- not HTTP, or not only HTTP

ONE = HEAD + b"Content-Length: %d\r\n" % len(BODY)
CHUNKS = chunk(BODY) + LAST_CHUNK
IN_VALUES = [*range(9), *range(11, 13), *range(14, 32), 127]
"""Control characters but the tab and the two that end lines."""
IN_NAMES = [*IN_VALUES, 9, *b' "(),/;<=>?@[]{}', 128, 255]


def chunked(size_line: bytes, end: bytes = b"\r\n", last: bytes = LAST_CHUNK) -> bytes:
    """The body as one chunk whose framing is not what it should be."""
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + size_line + BODY + end + last


HOSTILE = {
    **{f"{byte:#04x} in a value": ONE + b"X: a%cb\r\n\r\n" % byte + BODY for byte in IN_VALUES},
    **{f"{byte:#04x} in a name": ONE + b"X%cY: 1\r\n\r\n" % byte + BODY for byte in IN_NAMES},
    **{
        f"{byte:#04x} in the query": GOOD.replace(b"completions", b"completions?a%cb" % byte)
        for byte in [*IN_NAMES[: len(IN_VALUES) + 1], 10, 13, 128, 255]
    },
    **{
        f"the length {text!r}": HEAD + b"Content-Length: " + text + b"\r\n\r\n" + BODY
        for text in (b"7.0", b"7_2", b"7 2", b"7,", b"1e2", b"\xd9\xa3", b"7\x0b", b"18446744073709551688")
    },
    **{
        f"the coding {text!r}": HEAD + b"Transfer-Encoding: " + text + b"\r\n\r\n" + CHUNKS
        for text in (
            b"chunked;q=1",
            b"identity",
            b"",
            b'"chunked"',
            b"chunked,",
            b",chunked",
            b"chunked \t",
            b"chunked\x0c",
            b"identity, chunked",
            b"gzip, chunked",
            b"chunked, gzip",
            b"xchunked",
            b"chunkedx",
            b"chun ked",
        )
    },
    **{
        f"the coding {text!r} beside a length": ONE + b"Transfer-Encoding: " + text + b"\r\n\r\n" + BODY
        for text in (b"identity", b"", b"chunked", b"CHUNKED", b" chunked", b"x")
    },
    "chunked on two lines": HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKS,
    "an unended string in a chunk extension": chunked(b'%x;a="b\r\n' % len(BODY)),
    "a NUL in a chunk extension": chunked(b"%x;a\x00b\r\n" % len(BODY)),
    "a line feed in a chunk extension": chunked(b"%x;a\nb\r\n" % len(BODY)),
    "a space behind a chunk size": chunked(b"%x \r\n" % len(BODY)),
    "a space before a chunk size": chunked(b" %x\r\n" % len(BODY)),
    "a negative chunk size": chunked(b"-1\r\n"),
    "a chunk size that overflows": chunked(b"1%016x\r\n" % len(BODY)),
    "a chunk size ended by a carriage return": chunked(b"%x\rX" % len(BODY)),
    "a chunk without an end": chunked(b"%x\r\n" % len(BODY), b""),
    "chunk data ended by a line feed": chunked(b"%x\r\n" % len(BODY), b"\n"),
    "chunk data ended by a carriage return": chunked(b"%x\r\n" % len(BODY), b"\rX"),
    "a length in the trailer": chunked(b"%x\r\n" % len(BODY), last=b"0\r\nContent-Length: 5\r\n\r\n"),
    "a coding in the trailer": chunked(b"%x\r\n" % len(BODY), last=b"0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a trailer that is none": chunked(b"%x\r\n" % len(BODY), last=b"0\r\nX Y: 1\r\n\r\n"),
    "a trailer ended by a line feed": chunked(b"%x\r\n" % len(BODY), last=b"0\r\n\n"),
    **{
        f"the host {text!r}": GOOD.replace(b"poise.test", text)
        for text in (b"a@b", b"a/b", b"a, b", b"a b", b"a?b", b"a#b", b"a\\b", b"\xff", b'"a"', b"x\r\n y", b"a\tb")
    },
    "two equal hosts": GOOD.replace(b"Host: poise.test", b"Host: poise.test\r\nHost: poise.test"),
    "a full URL and no host": GOOD.replace(b"POST ", b"POST http://x").replace(b"Host: poise.test\r\n", b""),
    **{
        f"the version {text!r}": GOOD.replace(b"HTTP/1.1", text)
        for text in (
            b"HTTP/1.2",
            b"HTTP/2.0",
            b"HTTP/1.10",
            b"HTTP/01.1",
            b"http/1.1",
            b"HTTP/1.1 ",
            b"HTTP/1",
            b"HTTP/1.1x",
            b"XTTP/1.1",
        )
    },
    "a tab in the request line": GOOD.replace(b"POST /", b"POST\t/"),
    "a method in small letters": GOOD.replace(b"POST", b"post"),
    "a space before the method": b" " + GOOD,
    "two lengths": ONE + b"Content-Length: 5\r\n\r\n" + BODY,
    "two equal lengths": ONE + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "a signed length": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "an empty length": HEAD + b"Content-Length: \r\n\r\n",
    "a length without end": HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
    "length and chunks": ONE + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "an unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "chunked not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "coding with a tab": HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n",
    "bare line feeds": GOOD.replace(b"\r\n", b"\n"),
    "one bare line feed": HEAD + b"X: 1\nContent-Length: 2\r\n\r\n{}",
    "a bare carriage return": HEAD + b"X: 1\rY: 2\r\nContent-Length: 2\r\n\r\n{}",
    "a folded header": HEAD + b"X: 1\r\n  more\r\nContent-Length: 2\r\n\r\n{}",
    "a space before the colon": HEAD + b"Content-Length : 2\r\n\r\n{}",
    "a space before the first header": b"POST /v1/chat/completions HTTP/1.1\r\n Host: x\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a value": HEAD + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}",
    "a NUL in a name": HEAD + b"X\x00Y: a\r\nContent-Length: 2\r\n\r\n{}",
    "an empty name": HEAD + b": a\r\nContent-Length: 2\r\n\r\n{}",
    "a header without a colon": HEAD + b"nonsense\r\nContent-Length: 2\r\n\r\n{}",
    "a chunk size that is none": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a signed chunk size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "a hexadecimal prefix": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size without end": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    "a chunk longer than its size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "a chunk ended by a line feed": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 2\r\n\r\n{}",
    "no host": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "no version": b"POST /v1/chat/completions\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "another version": GOOD.replace(b"HTTP/1.1", b"HTTP/3.0"),
    "no method": b" /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
    "an unknown method": GOOD.replace(b"POST", b"BREW"),
    "a space in the target": GOOD.replace(b"/v1/chat/completions", b"/v1/chat completions"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50) + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(20),
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "noise": bytes(range(128, 256)) * 4 + b"\r\n\r\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_what_two_parsers_could_read_in_two_ways_is_refused(kind: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await refused(poise, replica, HOSTILE[kind], 400, 404, 405, 501, 505)
        if kind != "an unknown method":
            assert got.status != 404


@pytest.mark.parametrize("kind", ["two lengths", "length and chunks", "bare line feeds", "a folded header"])
async def test_a_refused_request_takes_what_follows_it_along(kind: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        await caller.send(HOSTILE[kind] + GOOD)
        assert (await caller.answer()).status == 400
        with pytest.raises(PeerGone):
            await caller.head()
        assert replica.requests == []


async def test_a_body_that_is_a_request_stays_a_body() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        caller = await poise.client()
        for _ in range(2):
            assert (await caller.ask(request(body=GOOD))).status == 200
        assert [exchange.body for exchange in replica.requests] == [GOOD, GOOD]


# -- paths

UNSERVED = [
    "/", "/metrics", "/sleep", "/wake_up", "/reset_prefix_cache", "/v1/load_lora_adapter", "/pause", "/docs",
    "/invocations", "/server_info", "/collective_rpc", "/start_profile", "/abort_requests", "/v1", "/v1/",
    "/v1/../sleep", "/v1/%2e%2e/sleep", "/v1/%2E%2E%2Freset_prefix_cache", "/v1/chat/../../metrics", "/./metrics",
    "//metrics", "//v1//chat/completions", "/v1/chat/completions/", "/v1/chat/completions/..", "/v1/chat/completions;x",
    "/v1/chat%2Fcompletions", "/v1/chat/completions%00", "/v1/chat/completions%20", "/V1/chat/completions",
    "/v1/chat/completions%3Fx", "/v1/%63hat/completions", "/v1/chat/completions#x", "/v1\\chat\\completions",
    "/v1/responses/../../sleep", "/v1/responses/a%2F..%2Fsleep", "/v1/responses/a/b", "/v1/responses/", "*", "metrics",
    "v1/chat/completions", "http://x/metrics", "http://x", "http://x/v1/../metrics", "http://x@y/sleep", "x:80",
    "https://x/sleep?/v1/chat/completions", "http:///sleep", "/sleep?a=/v1/chat/completions", "?/v1/chat/completions",
    "/v1/chat/completions\xff", "/v1/chat/completions/%c0%af", "/%76%31/chat/completions",
]  # fmt: skip


@pytest.mark.parametrize("target", UNSERVED)
async def test_nothing_unserved_reaches_a_replica_in_any_spelling(target: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS"):
            sent = request(target, BODY if method in ("POST", "PUT") else None, method=method)
            got = await refused(poise, replica, sent, 400, 403, 404, 405)
            assert got.value("access-control-allow-origin") is None


@pytest.mark.parametrize("target", ["/v1/chat/completions\x00", "/v1/chat\x00/completions", "/v1/chat/completions\t"])
async def test_control_characters_in_a_target_are_refused(target: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        await refused(poise, replica, request(target, BODY), 400, 404)


async def test_a_full_url_to_a_served_path_is_sent_on_as_a_path_to_the_replicas_own_host() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request("http://elsewhere.test:1/v1/chat/completions?a=1", BODY))
        assert got.status == 200
        assert replica.requests[0].target == b"/v1/chat/completions?a=1"
        assert replica.requests[0].head.value("host") == f"127.0.0.1:{replica.port}".encode()


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "PATCH", "PUT", "DELETE", "GET"])
async def test_other_methods_on_a_served_path_are_405(method: str) -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        sent = request("/v1/chat/completions", None, method=method)
        got = await refused(poise, replica, sent, *((400, 405) if method == "CONNECT" else (405,)))
        assert got.status == 400 or b"POST" in (got.value("allow") or b"")


async def test_head_on_a_served_path_is_405_without_a_body() -> None:
    async with ScriptedReplica(answers()) as replica, gateway(replica) as poise:
        got = await poise.ask(request("/v1/chat/completions", None, method="HEAD"))
        assert (got.status, got.body) == (405, b"")
        assert not replica.requests
