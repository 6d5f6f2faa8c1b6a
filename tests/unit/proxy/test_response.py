"""Answers as each kind of caller has to read them: HTTP/1.0 and 1.1, HEAD, browsers, streams that had begun."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.errors import Refusal
from poise.proxy.request import IncomingRequest
from poise.proxy.response import ResponseWriter, cors_headers
from poise.proxy.routes import find_route
from poise.proxy.settings import Cors
from poise.proxy.write_batch import WriteBatch
from poise.wire.http import BODILESS, AnswerHead
from poise.wire.sse import event_lines
from support.fake_transport import FakeTransport
from support.http_reading import Framing, Head

ORIGIN = b"https://app.test"
REFUSAL = Refusal(502, "replica_lost", "the replica\nended", "replica")


@dataclass(frozen=True)
class Caller:
    """What a caller is and sent, and how the gateway is set up for it."""

    path: bytes = b"/v1/chat/completions"
    method: bytes = b"POST"
    http10: bool = False
    keep_alive: bool = True
    origin: bytes | None = None
    allow_origins: tuple[str, ...] = ()
    reveal: bool = True


@st.composite
def callers(draw: st.DrawFn, *methods: bytes) -> Caller:
    http10 = draw(st.booleans())
    return Caller(
        path=draw(st.sampled_from([b"/v1/chat/completions", b"/v1/messages", b"/v1/responses", b"/v1/embeddings"])),
        method=draw(st.sampled_from(methods or (b"POST",))),
        http10=http10,
        keep_alive=not http10 and draw(st.booleans()),
        origin=draw(st.sampled_from([None, ORIGIN, b"https://other.test", b"null", b"\xff"])),
        allow_origins=draw(
            st.sampled_from([(), ("*",), ("https://app.test",), ("https://a.test", "https://app.test")])
        ),
        reveal=draw(st.booleans()),
    )


@dataclass(frozen=True)
class Answer:
    """An answer as its caller reads it."""

    head: Head
    body: bytes
    complete: bool


def written(caller: Caller, write: Callable[[ResponseWriter], None]) -> bytes:
    """What a caller's connection carries after `write` and the end of the round."""

    async def run() -> bytes:
        transport = FakeTransport()
        out = ResponseWriter(transport, WriteBatch(), Cors(caller.allow_origins), reveal_replica=caller.reveal)
        request = IncomingRequest()
        request.method, request.http10, request.keep_alive = caller.method, caller.http10, caller.keep_alive
        request.request_id, request.origin, request.route = b"id-1", caller.origin, find_route(caller.path)
        out.prepare(request)
        assert not out.begun
        out.replica, out.reason = "r1", "home"
        write(out)
        await asyncio.sleep(0)
        assert out.begun
        return transport.written

    return asyncio.run(run())


def read(caller: Caller, stream: bytes) -> Answer:
    """The one answer in `stream`, which has to hold nothing else. `complete`: its end can be told and was there."""
    raw, end, body = stream.partition(b"\r\n\r\n")
    assert end
    head = Head(raw + end)
    status = int(head.first_line.split()[1])
    assert head.value("x-request-id") == b"id-1"
    assert head.value("connection") == (None if caller.keep_alive else b"close")
    if status in BODILESS or caller.method == b"HEAD":
        return Answer(head, body, complete=not body)
    if head.framing is Framing.LENGTH:
        return Answer(head, body, complete=len(body) == int(head.value("content-length") or b""))
    if head.framing is Framing.CHUNKED:
        assert not caller.http10, "an HTTP/1.0 caller cannot read chunks"
        return read_chunks(head, body)
    assert not caller.keep_alive, "without a framing only the connection's end ends the body"
    return Answer(head, body, complete=True)


def read_chunks(head: Head, data: bytes) -> Answer:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, mark, data = body + data[:length], data[length : length + 2], data[length + 2 :]
        assert mark == b"\r\n"
        if length == 0:
            assert data == b"", "bytes after the last chunk"
            return Answer(head, body, complete=True)
    return Answer(head, body, complete=False)


def check_gateway_headers(caller: Caller, head: Head) -> None:
    assert head.value("x-poise-replica") == (b"r1" if caller.reveal else None)
    assert head.value("x-poise-reason") == (b"home" if caller.reveal else None)


def allowed_origin(caller: Caller) -> bytes | None:
    if caller.origin is None or not caller.allow_origins:
        return None
    if "*" in caller.allow_origins:
        return b"*"
    return caller.origin if caller.origin in map(str.encode, caller.allow_origins) else None


pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
statuses = st.sampled_from([200, 201, 400, 404, 500, 503])


# -- plain answers


@given(caller=callers(), status=statuses, body=pieces, knows_length=st.booleans(), ended=st.booleans())
def test_a_plain_answer_is_what_the_replica_sent(
    caller: Caller, status: int, body: list[bytes], knows_length: bool, ended: bool
) -> None:
    first, *rest = body or [b""]
    length = sum(map(len, body)) if knows_length else None

    def write(out: ResponseWriter) -> None:
        out.answer(AnswerHead(status, [(b"X-A", b"1"), (b"Content-Length", b"999")]), first, length=length)
        for piece in rest:
            out.body(piece)
        if ended:
            out.end()

    answer = read(caller, written(caller, write))
    assert answer.head.first_line.startswith(b"HTTP/1.1 %d " % status)
    assert answer.head.value("x-a") == b"1"
    assert answer.body == b"".join(body)
    assert answer.complete == (ended or knows_length or caller.http10)
    check_gateway_headers(caller, answer.head)


@given(caller=callers(), status=st.sampled_from(sorted(BODILESS)))
def test_an_answer_that_can_have_no_body_says_nothing_of_one(caller: Caller, status: int) -> None:
    answer = read(caller, written(caller, lambda out: out.answer(AnswerHead(status, []), b"", length=-1)))
    assert answer.complete
    assert answer.head.framing is None


# -- streams


@given(caller=callers(), body=pieces)
def test_a_stream_is_one_chunk_for_each_read(caller: Caller, body: list[bytes]) -> None:
    def write(out: ResponseWriter) -> None:
        out.stream_head(200, [b"content-type", b": ", b"text/event-stream", b"\r\n"])
        out.stream_head(200, [b"x-second", b": ", b"head", b"\r\n"])
        for piece in body:
            out.body(piece)
        out.end()

    stream = written(caller, write)
    answer = read(caller, stream)
    assert (answer.body, answer.complete) == (b"".join(body), True)
    assert answer.head.value("x-second") is None
    assert answer.head.value("x-accel-buffering") == b"no"
    assert b"no-cache" in (answer.head.value("cache-control") or b"")
    check_gateway_headers(caller, answer.head)
    if not caller.http10:
        assert stream.endswith(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in body) + b"0\r\n\r\n")


@given(caller=callers(), before=pieces)
def test_a_stream_that_fails_says_so_in_an_event_its_client_knows(caller: Caller, before: list[bytes]) -> None:
    def write(out: ResponseWriter) -> None:
        out.stream_head(200, [])
        for piece in before:
            out.body(piece)
        out.error_event(REFUSAL)
        out.end()

    answer = read(caller, written(caller, write))
    assert answer.complete
    (event,) = event_lines(answer.body.removeprefix(b"".join(before)))
    typed = caller.path != b"/v1/chat/completions"
    assert event[0] == (b"error" if typed else None)
    assert json.loads(event[1])["error"]["code"] == "replica_lost"


@given(caller=callers(), status=st.sampled_from([200, 400, 503]),
       body=pieces.map(b"\n".join), length=st.none() | st.integers(0, 99))  # fmt: skip
def test_a_plain_answer_to_a_caller_who_was_promised_a_stream_comes_as_an_event(
    caller: Caller, status: int, body: bytes, length: int | None
) -> None:
    def write(out: ResponseWriter) -> None:
        out.stream_head(200, [])
        out.answer(AnswerHead(status, []), body, length=length)

    answer = read(caller, written(caller, write))
    assert answer.complete
    assert answer.head.first_line.startswith(b"HTTP/1.1 200 ")
    expected = b"\n".join(body.splitlines())
    failed = status >= 400 and caller.path != b"/v1/chat/completions"
    assert event_lines(answer.body) == ([(b"error" if failed else None, expected)] if body or failed else [])


# -- the gateway's own


@given(caller=callers(b"GET", b"HEAD", b"POST", b"OPTIONS"), status=st.sampled_from([200, 204, 400, 404, 503]),
       size=st.integers(0, 50))  # fmt: skip
def test_an_own_answer_is_whole_and_has_no_body_for_head(caller: Caller, status: int, size: int) -> None:
    body = b"" if status == 204 else b"x" * size
    answer = read(caller, written(caller, lambda out: out.whole(status, body, [(b"retry-after", b"1")])))
    assert answer.complete
    assert answer.body == (b"" if caller.method == b"HEAD" else body)
    assert answer.head.value("content-length") == (None if status == 204 else b"%d" % len(body))
    assert answer.head.value("retry-after") == b"1"
    assert answer.head.value("access-control-allow-origin") == allowed_origin(caller)


# -- browsers


@given(caller=callers(), names=st.sampled_from([b"Access-Control-Allow-Origin", b"access-control-allow-origin"]),
       kind=st.sampled_from(["plain", "stream"]))  # fmt: skip
def test_one_origin_is_allowed_by_the_gateway_if_it_allows_any(caller: Caller, names: bytes, kind: str) -> None:
    def write(out: ResponseWriter) -> None:
        head = AnswerHead(200, [(names, b"https://engine.test"), (b"Vary", b"Accept")])
        if kind == "plain":
            out.answer(head, b"{}", length=2)
        else:
            out.stream_head(200, head.lines)
            out.end()

    head = read(caller, written(caller, write)).head
    expected = allowed_origin(caller) if caller.allow_origins else b"https://engine.test"
    assert head.value("access-control-allow-origin") == expected
    by_origin = caller.allow_origins and "*" not in caller.allow_origins
    assert head.values("vary") == [b"Accept", *([b"origin"] if by_origin else [])], "caches must know, allowed or not"


@pytest.mark.parametrize("allowed", [(), ("https://app.test",), ("*",)])
def test_no_origin_needs_no_permission(allowed: Sequence[str]) -> None:
    assert b"access-control-allow-origin" not in dict(cors_headers(Cors(tuple(allowed)), None))


def test_an_empty_read_does_not_end_a_chunked_body() -> None:
    caller = Caller(b"/v1/chat/completions", b"POST", False, True, None, (), False)

    def write(out: ResponseWriter) -> None:
        out.stream_head(200, [])
        for data in (b"", b"a", b"", b"b"):
            out.body(data)
        out.end()

    answer = read(caller, written(caller, write))
    assert (answer.body, answer.complete) == (b"ab", True)


# -- one answer after another


def test_each_answer_on_a_connection_is_framed_for_itself() -> None:
    async def run() -> list[bytes]:
        transport = FakeTransport()
        out = ResponseWriter(transport, WriteBatch(), Cors(), reveal_replica=True)
        request = IncomingRequest()
        request.request_id = b"id-1"
        out.prepare(request)
        out.replica = "r1"
        out.stream_head(200, [])
        out.end()
        out.prepare(request)
        out.whole(200, b"{}", [])
        out.prepare(request)
        out.answer(AnswerHead(200, []), b"ab", length=3)
        out.body(b"c")
        out.end()
        await asyncio.sleep(0)
        return transport.written.split(b"HTTP/1.1 ")[1:]

    stream, own, plain = asyncio.run(run())
    assert stream.endswith(b"\r\n\r\n0\r\n\r\n")
    assert own.endswith(b"content-length: 2\r\n\r\n{}")
    assert plain.endswith(b"content-length: 3\r\n\r\nabc")
    assert b"x-poise-replica" in stream
    assert b"x-poise-replica" not in own + plain
