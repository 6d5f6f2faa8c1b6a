"""Replica addresses: what is written is what is reached, and what cannot be is refused in words."""

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poise.core.errors import ConfigError
from poise.core.replica import ReplicaAddress, check_replica_name, parse_replica_url, without_secrets

hosts = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?(\.[a-z0-9]{1,5}){0,2}", fullmatch=True) | st.sampled_from(
    ["127.0.0.1", "::1", "fe80::1", "2001:db8::ff"]
)
ports = st.integers(1, 65535)
ranks = st.none() | st.integers(0, 10**6)


@given(host=hosts, port=ports, tls=st.booleans(), rank=ranks)
def test_an_address_is_parsed_as_it_is_written(host: str, port: int, tls: bool, rank: int | None) -> None:
    address = ReplicaAddress(host, port, tls, rank)
    assert parse_replica_url(address.url) == address
    assert address.url == f"{'https' if tls else 'http'}://{address.authority}{'' if rank is None else f'@{rank}'}"


@given(host=hosts, tls=st.booleans(), rank=ranks, slash=st.booleans(), upper=st.booleans())
def test_the_port_may_be_left_out(host: str, tls: bool, rank: int | None, slash: bool, upper: bool) -> None:
    written = f"[{host}]" if ":" in host else host
    root = f"{'https' if tls else 'http'}://{written}{'/' if slash else ''}"
    text = (root.upper() if upper else root) + ("" if rank is None else f"@{rank}")
    assert parse_replica_url(text) == ReplicaAddress(host, 443 if tls else 80, tls, rank)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an http or https address"), ("host:8000", "not an http or https address"),
        ("ftp://host", "not an http or https address"), ("http://", "not an http or https address"),
        ("http://:8000", "not an http or https address"), ("//host:8000", "not an http or https address"),
        ("http://host/a b", "more than scheme"), ("http://host/../v1", "more than scheme"),
        ("http://host//v1", "more than scheme"), ("http://host?a=b", "more than scheme"),
        ("http://host#a", "more than scheme"), ("http://user:secret@host", "more than scheme"),
        ("http://host:8000@a", "more than scheme"), ("http://host:8000@-1", "more than scheme"),
        ("http://host@1@2", "more than scheme"), ("http://host:0", "port"), ("http://host:65536", "port"),
        ("http://host:-1", "port"), ("http://host:http", "port"), ("http://[::1", ""), ("http://::1]:80", ""),
        ("http://a\u2100b", ""),
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_replica_url(text)
    assert raised.value.hint
    assert message in str(raised.value)
    assert repr(without_secrets(text)) in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:s3cret@host",
        "http://s3cret@host:80@2",
        "http://host/v1?api_key=s3cret",
        "http://host/#s3cret",
        "ftp://s3cret@host/?s3cret",
    ],
)
def test_no_message_shows_what_may_be_a_secret(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_replica_url(url)
    assert "s3cret" not in str(raised.value)
    assert "host" in str(raised.value)


@pytest.mark.parametrize(
    ("path", "base"),
    [
        ("", ""),
        ("/", ""),
        ("/v1", ""),
        ("/v1/", ""),
        ("/api/v1", "/api"),
        ("/api", "/api"),
        ("/a/b-c/v1", "/a/b-c"),
        ("/v1beta", "/v1beta"),
    ],
)
def test_the_path_before_v1_is_part_of_the_address(path: str, base: str) -> None:
    address = parse_replica_url(f"https://host{path}")
    assert (address.base, address.url) == (base, f"https://host:443{base}")
    assert parse_replica_url(f"https://host{path}@3") == replace(address, rank=3)


@given(text=st.text(max_size=30) | st.text("/:@[]#?%.0123456789ahtp", max_size=20).map("http://".__add__))
@example(text="http://[v1.x]")
@example(text="http://h@" + "9" * 5000)
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    try:
        address = parse_replica_url(text)
    except ConfigError:
        return
    assert 1 <= address.port <= 65535
    assert address.host
    assert parse_replica_url(address.url) == address


@given(text=st.text(max_size=70) | st.from_regex(r"[A-Za-z0-9._-]{1,70}", fullmatch=True))
@example(text="a\n")
@example(text="a" * 63)
@example(text="a" * 64)
@example(text="é")
def test_a_name_can_be_shown_and_be_a_label(text: str) -> None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text) and len(text) <= 63:
        assert check_replica_name(text) == text
    else:
        with pytest.raises(ConfigError, match="hint: use 1 to 63 letters"):
            check_replica_name(text)
