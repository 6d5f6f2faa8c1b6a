"""What is kept of a caller's head does not depend on the order and spelling of its headers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.request import HEADER_KINDS, MAX_REQUEST_ID_BYTES, IncomingRequest, without_keys
from poise.wire.facts import SESSION_HEADERS, USER_HEADERS
from poise.wire.http import HOP_BY_HOP

Header = tuple[bytes, bytes]

OWN = HOP_BY_HOP | {
    b"host", b"content-length", b"expect", b"authorization", b"x-api-key", b"api-key", b"x-request-id",
    b"x-data-parallel-rank",
}  # fmt: skip
"""What the gateway writes itself, or nobody may."""


@st.composite
def spellings(draw: st.DrawFn, name: bytes) -> bytes:
    """`name` with any of its letters in upper case."""
    return bytes(letter - 32 * (draw(st.booleans()) and 97 <= letter <= 122) for letter in name)


def any_spelling(*names: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from(names).flatmap(spellings)


values = st.binary(max_size=10).map(lambda value: re.sub(rb"[\r\n\x00]", b".", value))
others = st.lists(
    st.tuples(any_spelling(b"accept", b"user-agent", b"content-type", b"x-a", b"cookie"), values), max_size=5
)
own = st.lists(st.tuples(any_spelling(*sorted(OWN - {b"content-length", b"connection"})), values), max_size=5)
sessions = st.dictionaries(st.sampled_from(SESSION_HEADERS), values, max_size=5)
users = st.dictionaries(st.sampled_from(USER_HEADERS), values, max_size=2)


def read(headers: list[Header], target: bytes = b"/v1/chat/completions") -> IncomingRequest:
    request = IncomingRequest()
    request.target = target
    for name, value in headers:
        request.add_header(name, value)
    request.head_complete()
    return request


def flat(headers: list[Header]) -> list[bytes]:
    return [part for name, value in headers for part in (name, b": ", value, b"\r\n")]


def first_of(keys: dict[bytes, bytes], order: tuple[bytes, ...]) -> bytes | None:
    return next((keys[name] for name in order if keys.get(name)), None)


@given(sessions=sessions, users=users, others=others, data=st.data())
def test_keys_have_their_precedence_in_any_order(
    sessions: dict[bytes, bytes], users: dict[bytes, bytes], others: list[Header], data: st.DataObject
) -> None:
    named = [(data.draw(spellings(name)), value) for name, value in {**sessions, **users}.items()]
    headers = data.draw(st.permutations(named + others))
    request = read(headers)
    assert request.session_key == first_of(sessions, SESSION_HEADERS)
    assert request.user_key == first_of(users, USER_HEADERS)
    assert request.head == flat(headers), "they are sent on: the replica may have a use for them"


@given(kept=others, dropped=own, data=st.data())
def test_all_but_the_gateways_own_headers_are_sent_on_as_they_came(
    kept: list[Header], dropped: list[Header], data: st.DataObject
) -> None:
    order = data.draw(st.permutations([True] * len(kept) + [False] * len(dropped)))
    sources = {True: iter(kept), False: iter(dropped)}
    request = read([next(sources[is_kept]) for is_kept in order])
    assert request.head == flat(kept)
    assert request.head_bytes == len(request.target) + sum(len(name) + len(value) + 4 for name, value in kept)


@given(
    named=st.lists(any_spelling(b"x-a", b"cookie", b"x-session-id", b"x-not-there"), max_size=3),
    plain=st.lists(any_spelling(b"close", b"keep-alive", b"upgrade"), max_size=2),
    separate=st.booleans(),
    data=st.data(),
)
def test_what_connection_names_is_not_sent_on(
    named: list[bytes], plain: list[bytes], separate: bool, data: st.DataObject
) -> None:
    tokens = data.draw(st.permutations(named + plain))
    connection = [(b"Connection", token) for token in tokens] if separate else [(b"Connection", b", ".join(tokens))]
    rest = [(b"X-A", b"1"), (b"Cookie", b"2"), (b"X-Session-Id", b"3"), (b"Accept", b"4"), (b"Close", b"5")]
    headers = data.draw(st.permutations(connection + rest))
    gone = {name.lower() for name in named}
    assert read(headers).head == flat(
        [header for header in headers if header in rest and header[0].lower() not in gone]
    )


@pytest.mark.parametrize("name", sorted(HEADER_KINDS))
@given(data=st.data(), value=st.integers(0, 10**9))
def test_each_special_header_is_known_in_any_spelling(name: bytes, data: st.DataObject, value: int) -> None:
    text = b"%d" % value
    one, other = read([(name, text)]), read([(data.draw(spellings(name)), text)])
    assert one.head == [part if part != other.head[0] else name for part in other.head] if other.head else not one.head
    for attribute in ("hosts", "coding", "declared_bytes", "connection", "upgrade", "request_id", "origin", "encoded",
                      "expects_continue", "session_key", "user_key"):  # fmt: skip
        assert getattr(one, attribute) == getattr(other, attribute)


@given(value=values | st.text(max_size=200).map(str.encode) | st.from_regex(rb"[!-~]{1,140}", fullmatch=True))
def test_a_request_id_is_kept_if_it_can_stand_in_a_log_and_a_head(value: bytes) -> None:
    fine = re.fullmatch(rb"[ -~]{1,%d}" % MAX_REQUEST_ID_BYTES, value) is not None
    assert read([(b"X-Request-Id", value)]).request_id == (value if fine else b"")


paths = st.from_regex(rb"/[a-z0-9/.%]{0,12}", fullmatch=True)
queries = st.just(b"") | st.from_regex(rb"\?[a-z0-9/?:=&%]{0,12}", fullmatch=True)
authorities = st.sampled_from([b"host", b"host:8080", b"user@host", b"[::1]:80"])


@given(path=paths, query=queries, scheme=st.sampled_from([b"http", b"https", b"ws"]), authority=authorities)
def test_an_absolute_target_is_its_path_and_query(path: bytes, query: bytes, scheme: bytes, authority: bytes) -> None:
    plain = read([], path + query)
    assert (plain.target, plain.path) == (path + query, path)
    absolute = read([], scheme + b"://" + authority + path + query)
    assert (absolute.target, absolute.path) == (path + query, path)


@given(query=queries)
def test_an_absolute_target_without_a_path_is_the_root(query: bytes) -> None:
    request = read([], b"http://host" + query)
    assert request.path == b"/"


@pytest.mark.parametrize(
    ("value", "encoded"), [(b"", False), (b"identity", False), (b"Identity", False), (b"gzip", True), (b"zstd", True)]
)
def test_a_body_is_encoded_unless_its_coding_is_identity(value: bytes, encoded: bool) -> None:
    assert read([(b"Content-Encoding", value)]).encoded is encoded


def test_two_transfer_codings_are_told_from_one() -> None:
    assert read([(b"Transfer-Encoding", b"Chunked")]).coding == b"chunked"
    twice = read([(b"Transfer-Encoding", b"chunked"), (b"Transfer-Encoding", b"chunked")])
    assert twice.coding not in (b"", b"chunked")


KEYS_IN_QUERIES = st.sampled_from(
    [b"api_key=sk-1", b"API_KEY=sk-1", b"api-key=sk-1", b"apikey", b"access_token=sk-1&x=y"]
)
PARAMETERS = st.lists(st.from_regex(rb"[a-z%2F=+.-]{0,6}", fullmatch=True) | KEYS_IN_QUERIES, max_size=6)


@given(PARAMETERS)
def test_only_keys_are_taken_out_of_a_query(parameters: list[bytes]) -> None:
    target = b"/v1/x?" + b"&".join(parameters)
    left = without_keys(target)
    assert b"sk-1" not in left
    parts = b"&".join(parameters).split(b"&")
    kept = [
        part
        for part in parts
        if part.partition(b"=")[0].lower().replace(b"-", b"_") not in (b"api_key", b"apikey", b"access_token")
    ]
    assert left == (b"/v1/x?" + b"&".join(kept) if kept else b"/v1/x")
