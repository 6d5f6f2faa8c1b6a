"""The model in a request's body: found wherever it stands, replaced without another byte changed."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.wire.model_field import (
    MAX_FALSE_DELIMITERS,
    MAX_PART_HEAD_BYTES,
    find_in_form,
    find_in_json,
    replace_in_form,
    replace_in_json,
)

NAME = 'org/a "longer" näme \\ than before'
keys = st.one_of(st.just("model"), st.text(max_size=5), st.just('"model":'), st.just('\\"model'))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | keys,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
others = st.dictionaries(keys.filter(lambda key: key != "model"), values, max_size=4)


@given(others, others, st.text(max_size=20), st.text(), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_only_the_top_level_text_changes(
    before: dict[str, Any], after: dict[str, Any], old: str, new: str, ascii_only: bool, indent: Any
) -> None:
    value = {**before, "model": old, **after}
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    got = replace_in_json(body, new)
    assert got is not None
    assert json.loads(got) == {**value, "model": new}
    start, end = find_in_json(body) or (0, 0)
    assert (got[:start], got[len(got) - (len(body) - end) :]) == (body[:start], body[end:])
    assert json.loads(body[start:end]) == old


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (rb'{"model":"a"}', rb'{"model":"b"}'),
        (rb' { "model" : "a" , "n":1.50} ', rb' { "model" : "b" , "n":1.50} '),
        (rb'{"x":{"model":"a"},"model":"a"}', rb'{"x":{"model":"a"},"model":"b"}'),
        (rb'{"model":"a","x":[{"model":"a"}]}', rb'{"model":"b","x":[{"model":"a"}]}'),
        (rb'{"t":"\"model\":\"a\"","model":"a"}', rb'{"t":"\"model\":\"a\"","model":"b"}'),
        (rb'{"\\":"model","model":"a"}', rb'{"\\":"model","model":"b"}'),
        (rb'{"mod\u0065l":"a"}', rb'{"mod\u0065l":"b"}'),
        (rb'{"\u006D\u006f\u0064\u0065\u006C":"\u0061"}', rb'{"\u006D\u006f\u0064\u0065\u006C":"b"}'),
        (rb'{"model":"a","model":"a"}', rb'{"model":"a","model":"b"}'),
    ],
)
def test_every_spelling(body: bytes, wanted: bytes) -> None:
    assert replace_in_json(body, "b") == wanted


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"model":1}', b'{"model":null}', b'{"x":{"model":"0"}}', b'{"model":"a"', b'"model":"a"',
        b'{"model":"a"}}', b'[{"model":"a"}]', b'{"model":1,"x":{"model":"0"}}', b"[" * 100_000,
        b'{"model":"a","x":[' + b'{"model":"a"},' * 1000 + b"0]}",
    ],
)  # fmt: skip
def test_where_there_is_none_to_be_replaced(body: bytes) -> None:
    assert replace_in_json(body, "b") is None


# -- forms

FILE = b'RIFF\r\n\r\nname="model"\r\n--bound\x00\xff\r\n--boundar'
TYPE = b'multipart/form-data; charset=utf-8; boundary="a boundary"'


def part(head: bytes, value: bytes) -> bytes:
    return b"--a boundary\r\n" + head + b"\r\n\r\n" + value + b"\r\n"


def form(name_head: bytes, value: bytes) -> bytes:
    file = part(b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav', FILE)
    return (
        file + part(name_head, value) + part(b'content-disposition: form-data; name="x"', b"1") + b"--a boundary--\r\n"
    )


@pytest.mark.parametrize(
    "head",
    [
        b'Content-Disposition: form-data; name="model"',
        b"content-disposition: form-data; name=model",
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"; x=y',
    ],
)
@pytest.mark.parametrize("value", [b"", b"whisper", "fl\u00fcster".encode()])
def test_a_forms_model_is_replaced(head: bytes, value: bytes) -> None:
    body = form(head, value)
    start, end = find_in_form(body, TYPE) or (-1, -1)
    assert body[start:end] == value
    assert replace_in_form(body, TYPE, NAME) == form(head, NAME.encode())


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(b'Content-Disposition: form-data; name="models"', b"a"), TYPE),
        (form(b'Content-Disposition: form-data; name="model"', b"a"), b"application/json"),
        (form(b'Content-Disposition: form-data; name="model"', b"a"), b"multipart/form-data"),
        (form(b'Content-Disposition: form-data; name="model"', b"a"), b"multipart/form-data; boundary=other"),
        (b"", TYPE),
        (b"--a boundary", TYPE),
        (b"--a boundary\r\nContent-Disposition: form-data; name=model", TYPE),
    ],
)
def test_forms_without_a_model(body: bytes, content_type: bytes) -> None:
    assert find_in_form(body, content_type) is None


@given(st.integers(0, 400))
def test_a_form_that_is_cut_off_is_no_error(length: int) -> None:
    whole = form(b'Content-Disposition: form-data; name="model"', b"whisper")
    span = find_in_form(whole[:length], TYPE)
    assert span is None or whole[span[0] : span[1]] == b"whisper"


def test_a_form_with_more_to_look_at_than_any_has_names_no_model() -> None:
    named = b'Content-Disposition: form-data; name="model"'
    long_head = named + b"\r\nx: " + b"y" * MAX_PART_HEAD_BYTES
    many_false = b"\r\n--a boundary?" * MAX_FALSE_DELIMITERS
    for body in (form(long_head, b"a"), part(b"x: y", many_false) + form(named, b"a")):
        assert find_in_form(body, TYPE) is None
    assert find_in_form(part(b"x: y", many_false[200:]) + form(named, b"a"), TYPE) is not None


MEGABYTES = 8 * 1024 * 1024


@pytest.mark.parametrize("filler", [b"abcd efgh ", b"\\n", b"\\u4e2d", b"{'model': [1]} "])
def test_a_large_body_is_searched_fast(filler: bytes) -> None:
    body = b'{"x":{"model":"' + filler * (MEGABYTES // len(filler)) + b'"},"model":"a"}'
    began_s = time.process_time()
    got = replace_in_json(body, "b")
    assert time.process_time() - began_s < 0.3
    assert got == body[:-4] + b'"b"}'


@pytest.mark.parametrize("filler", [b"\r\n--a boundaryx", b"\r\n--a", b"\n", b"; ", b" ", b"\ncontent-disposition:;"])
@pytest.mark.parametrize(
    "before", [b"--a boundary\r\n", b"--a boundary\r\ncontent-disposition: ;", b"--a boundary\r\n\r\n"]
)
def test_a_large_form_is_searched_fast(filler: bytes, before: bytes) -> None:
    body = before + filler * (MEGABYTES // len(filler)) + b"\r\n\r\nx\r\n--a boundary--\r\n"
    began_s = time.process_time()
    assert find_in_form(body, TYPE) is None
    assert time.process_time() - began_s < 0.3
