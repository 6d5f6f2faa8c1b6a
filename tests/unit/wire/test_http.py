"""Heads: what the caller gets of a replica's, in any order and spelling, and what the gateway writes itself."""

import json
import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.errors import Refusal
from poise.wire.http import (
    BODILESS,
    DROPPED_FROM_ANSWERS,
    ERROR_TYPES,
    AnswerHead,
    connection_tokens,
    error_body,
    own_head,
    refusal_headers,
    status_line,
    without,
)  # fmt: skip

Header = tuple[bytes, bytes]


@st.composite
def spellings(draw: st.DrawFn, name: bytes) -> bytes:
    """`name` with any of its letters in upper case."""
    return bytes(letter - 32 * (draw(st.booleans()) and 97 <= letter <= 122) for letter in name)


values = st.binary(min_size=1, max_size=10).map(lambda value: re.sub(rb"[\r\n\x00]", b".", value))
plain_names = st.sampled_from([b"server", b"date", b"etag", b"set-cookie", b"x-a", b"vary", b"content-language"])
kept = st.lists(st.tuples(plain_names.flatmap(spellings), values), max_size=6)
droppable = sorted(DROPPED_FROM_ANSWERS - {b"content-length", b"transfer-encoding", b"connection"})
dropped = st.lists(st.tuples(st.sampled_from(droppable).flatmap(spellings), values), max_size=4)


def flat(headers: list[Header]) -> list[bytes]:
    return [part for name, value in headers for part in (name, b": ", value, b"\r\n")]


@given(kept=kept, dropped=dropped, random=st.randoms(use_true_random=False))
def test_headers_are_kept_in_order_but_for_those_of_the_connection(
    kept: list[Header], dropped: list[Header], random: st.DataObject
) -> None:
    headers: list[Header] = list(kept)
    for header in dropped:
        headers.insert(random.randint(0, len(headers)), header)  # type: ignore[attr-defined]
    head = AnswerHead(200, headers)
    assert head.lines == flat(kept)
    assert (head.length, head.framed, head.events) == (None, False, False)


@pytest.mark.parametrize(
    ("location", "passed_on"),
    [
        (b"http://10.0.0.5:8000/v1/x?a=//b", b"/v1/x?a=//b"), (b"HTTPS://10.0.0.5:8000/", b"/"),
        (b"//10.0.0.5:8000/x", b"/x"), (b"http://10.0.0.5:8000", b"/"), (b"/v1/x", b"/v1/x"), (b"x?u=http://a/b", b"x?u=http://a/b"),
        (b"http://10.0.0.5:80001/x", None), (b"http://10.0.0.5:8000.evil/x", None), (b"http://other/x", None),
        (b"http://10.0.0.5:8000//evil/x", None), (b"ftp://10.0.0.5:8000/x", None), (b"http://a@10.0.0.5:8000/x", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"Location", b"content-location"])
def test_a_location_never_tells_where_a_replica_is(name: bytes, location: bytes, passed_on: bytes | None) -> None:
    lines = AnswerHead(307, [(name, location), (b"X-A", b"1")], b"10.0.0.5:8000").lines
    expected = [(b"X-A", b"1")] if passed_on is None else [(name, passed_on), (b"X-A", b"1")]
    assert lines == flat(expected)


@given(
    named=st.lists(st.sampled_from([b"x-a", b"etag", b"x-not-there"]), max_size=3),
    plain=st.lists(st.sampled_from([b"close", b"keep-alive", b"Keep-Alive"]), max_size=1),
    separate=st.booleans(),
    data=st.data(),
)
def test_what_connection_names_is_dropped_wherever_it_stands(
    named: list[bytes], plain: list[bytes], separate: bool, data: st.DataObject
) -> None:
    tokens = data.draw(st.permutations([*(data.draw(spellings(name)) for name in named), *plain]))
    connection = [(b"Connection", token) for token in tokens] if separate else [(b"Connection", b" , ".join(tokens))]
    others = [(b"X-A", b"1"), (b"ETag", b"2"), (b"Server", b"3")]
    headers = data.draw(st.permutations([*connection, *others]))
    expected = [header for header in headers if header in others and header[0].lower() not in named]
    assert AnswerHead(200, headers).lines == flat(expected)


FRAMING: dict[str, tuple[Header, ...]] = {
    "length": ((b"Content-Length", b"17"),),
    "chunked": ((b"Transfer-Encoding", b"chunked"),),
    "neither": (),
}


@pytest.mark.parametrize("framing", FRAMING)
@pytest.mark.parametrize(
    "content_type", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8", b"application/json"]
)
@pytest.mark.parametrize("coding", [None, b"identity", b"Identity", b"gzip"])
@pytest.mark.parametrize("status", [200, 201, 204, 299, 304, 400, 503])
def test_reading_a_head_does_not_depend_on_order(
    framing: str, content_type: bytes, coding: bytes | None, status: int
) -> None:
    coded = [] if coding is None else [(b"Content-Encoding", coding)]
    for headers in permutations(
        [(b"Content-Type", content_type), *coded, *FRAMING[framing], (b"Connection", b"close")]
    ):
        head = AnswerHead(status, headers)
        assert head.length == (17 if framing == "length" else None)
        assert head.framed == (framing != "neither" or status in BODILESS)
        assert head.bodiless == (status in (204, 304))
        readable = content_type.lower().startswith(b"text/event") and coding != b"gzip"
        assert head.events == (readable and 200 <= status < 300)
        assert head.lines == flat([header for header in headers if header[0] in (b"Content-Type", b"Content-Encoding")])


@given(headers=kept, names=st.sets(plain_names))
def test_without_leaves_out_whole_headers(headers: list[Header], names: set[bytes]) -> None:
    assert without(flat(headers), names) == flat([header for header in headers if header[0].lower() not in names])
    head = AnswerHead(200, headers)
    head.drop(*names)
    assert head.lines == without(flat(headers), names)


def test_connection_tokens_are_lower_case_and_bare() -> None:
    assert connection_tokens(b"Close, X-A ,\tx-B") == {b"close", b"x-a", b"x-b"}


# -- the gateway's own


@given(status=st.integers(100, 599))
def test_every_status_has_a_line_of_its_own(status: int) -> None:
    assert re.fullmatch(rb"HTTP/1\.1 %d [A-Za-z -]+'?[A-Za-z -]*\r\n" % status, status_line(status))


@given(status=st.sampled_from([200, 204, 304, 404, 503]), size=st.integers(0, 10**9), headers=kept, close=st.booleans())
def test_own_heads_are_framed_unless_they_have_no_body(
    status: int, size: int, headers: list[Header], close: bool
) -> None:
    first, *lines, end, rest = own_head(status, size, headers, close=close).split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert (end, rest) == (b"", b"")
    expected = [b"%b: %b" % header for header in headers]
    expected += [b"connection: close"] if close else []
    if status not in BODILESS:
        expected += [b"content-type: application/json", b"content-length: %d" % size]
    assert lines == expected


@given(status=st.integers(400, 599), message=st.text(), fault=st.sampled_from(["caller", "gateway", "replica"]))
def test_errors_have_the_shape_that_every_client_reads(status: int, message: str, fault: str) -> None:
    body = json.loads(error_body(Refusal(status, "some_code", message.encode(errors="ignore").decode(), fault)))
    assert body["type"] == "error"
    error = body["error"]
    assert (error["message"], error["code"], error["fault"]) == (
        message.encode(errors="ignore").decode(), "some_code", fault,
    )  # fmt: skip
    other = "api_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == ERROR_TYPES.get(status, other)
    assert error["param"] is None


def test_retry_after_is_said_only_if_known() -> None:
    assert refusal_headers(Refusal(503, "c", "m", "gateway")) == []
    assert refusal_headers(Refusal(503, "c", "m", "gateway", retry_after_s=7)) == [(b"retry-after", b"7")]
