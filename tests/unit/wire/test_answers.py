"""What the bytes of an answer say: refused, begun, broken off, and how many tokens it took."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poise.wire.answers import (
    NO_OUTPUT_TYPES,
    STATUS_OF_ERROR_TYPE,
    RefusedInStream,
    first_verdict,
    plain_verdict,
    stream_usage,
)  # fmt: skip
from support.apis import APIS, BUSY, COMMENT, DONE, MESSAGES, Api, chat_event, data, typed
from support.http_bytes import to_json

SILENT = [COMMENT, DONE, b": a\n: b\n\n", b"event: ping\n\n", b"id: 1\n\n", b"data:\n\n", b"\n", *(
    typed(kind, {}) for kind in sorted(NO_OUTPUT_TYPES)
)]  # fmt: skip
silence = st.lists(st.sampled_from(SILENT), max_size=5)

by_name = pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)


def json_of(event: bytes) -> bytes:
    return event.split(b"data: ")[1].strip()


# -- the first event decides


@given(before=silence)
def test_bookkeeping_says_nothing(before: list[bytes]) -> None:
    assert first_verdict(b"".join(before)) is False


def role_event(*choices: dict[str, Any]) -> bytes:
    return data({"id": "c", "object": "chat.completion.chunk", "choices": list(choices)})


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}, {"content": "", "tool_calls": []}])
def test_the_name_of_who_speaks_is_no_output(delta: dict[str, Any]) -> None:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "logprobs": None, "finish_reason": None}
    assert first_verdict(role_event(choice, {**choice, "index": 1})) is False
    assert first_verdict(role_event(choice) + DONE) is False


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"role": "assistant", "content": " "}},
        {"delta": {"role": "assistant", "reasoning_content": "Hm"}},
        {"delta": {"role": "assistant", "tool_calls": [{"index": 0}]}},
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": "length"},
        {"delta": "role"},
        {"delta": {"role": "assistant"}, "finish_reason": 7},
    ],
)
def test_whatever_else_comes_with_the_name_is_output(choice: dict[str, Any]) -> None:
    silent = {"delta": {"role": "assistant", "content": ""}}
    assert first_verdict(role_event(silent, choice)) is True


@by_name
@given(before=silence, after=silence)
def test_output_is_output_whatever_surrounds_it(api: Api, before: list[bytes], after: list[bytes]) -> None:
    later_error = api.error_event(503)
    assert first_verdict(b"".join([*before, *api.silent, api.output, *after, later_error])) is True


@by_name
@pytest.mark.parametrize("status", [400, 500, 503])
@given(before=silence, after=silence)
def test_an_error_before_output_is_a_refusal_with_its_status(
    api: Api, status: int, before: list[bytes], after: list[bytes]
) -> None:
    error = api.error_event(status)
    assert first_verdict(b"".join([*before, error, *after, DONE])) == RefusedInStream(status, json_of(error))


@pytest.mark.parametrize(
    ("code", "status"),
    [(503, 503), ("503", 503), (429, 429), (400, 400), (599, 599), (399, 500), (600, 500), (0, 500), (-503, 500),
     (10**30, 500), (503.0, 500), (None, 500), ("busy", 500), ("4" * 5000, 500),
     ("", 500), ([503], 500), ({"code": 503}, 500),
     (True, 500), ("٥٠٣", 500)],
)  # fmt: skip
def test_only_a_number_of_an_error_is_a_status(code: Any, status: int) -> None:
    verdict = first_verdict(data({"error": {"message": BUSY, "code": code}}))
    assert isinstance(verdict, RefusedInStream)
    assert verdict.status == status


@pytest.mark.parametrize(("kind", "status"), [*STATUS_OF_ERROR_TYPE.items(), ("something_else", 500), (None, 500)])
def test_an_error_type_stands_for_its_status(kind: str | None, status: int) -> None:
    for event in (typed("error", {"error": {"type": kind, "message": BUSY}}), data({"error": {"type": kind}})):
        assert first_verdict(event) == RefusedInStream(status, json_of(event))


@pytest.mark.parametrize("error", ["queue full", {"type": 5}, {"message": "m", "type": ["a"]}])
def test_an_error_of_an_odd_shape_is_a_refusal_all_the_same(error: Any) -> None:
    assert first_verdict(data({"error": error})) == RefusedInStream(500, to_json({"error": error}))


@pytest.mark.parametrize("error", [None, "", {}, False, True, 0, []])
def test_an_error_field_that_says_nothing_is_no_error(error: Any) -> None:
    assert first_verdict(chat_event({"content": "a"}, error=error)) is True


@given(text=st.binary(max_size=30).filter(lambda text: not {10, 13} & set(text) and text.strip()))
@example(text=b"[DONE]")
@example(text=b"{")
@example(text=b"null")
@example(text=b"[]")
@example(text=b"\xff\xfe")
@example(text=b'{"type": 5}')
def test_what_cannot_be_read_is_output(text: bytes) -> None:
    assert first_verdict(b"data: %b\n\n" % text) in (True, False) or b"error" in text
    assert first_verdict(b"data: x%b\n\n" % text) is True


# -- usage


NAMES = [("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")]
counts = st.none() | st.integers(0, 2**40)


@given(prompt=counts, output=counts, names=st.sampled_from(NAMES), inside=st.booleans(), before=silence, after=silence)
def test_the_last_usage_is_found_under_every_name(
    prompt: int | None, output: int | None, names: Sequence[str], inside: bool, before: list[bytes], after: list[bytes]
) -> None:
    usage = {"usage": dict(zip(names, (prompt, output), strict=True))}
    event = data({"response": usage} if inside else usage)
    first = data({"usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    later = [*after, data({"usage": None}), data({"usage": "?"}), b'data: {"usage"\n\n', DONE]
    assert stream_usage(b"".join([*before, first, event, *later])) == (prompt, output, None)
    if not inside:
        assert plain_verdict(to_json(usage)) == (False, (prompt, output, None))


CACHED_NAMES = {
    "chat": ("prompt_tokens_details", "cached_tokens"),
    "responses": ("input_tokens_details", "cached_tokens"),
    "messages": ("cache_read_input_tokens",),
}


@pytest.mark.parametrize("name", CACHED_NAMES)
@given(cached=counts)
def test_cached_tokens_are_found_under_every_name(name: str, cached: int | None) -> None:
    said: Any = cached
    for part in reversed(CACHED_NAMES[name]):
        said = {part: said}
    usage = {"usage": {"input_tokens": 11, "output_tokens": 7, **said}}
    assert stream_usage(data(usage)) == (11, 7, cached)


@pytest.mark.parametrize("details", [None, 5, "x", [], {}, {"cached_tokens": "x"}, {"cached_tokens": None}])
def test_details_that_make_no_sense_cost_only_themselves(details: object) -> None:
    usage = {"usage": {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": details}}
    assert plain_verdict(to_json(usage)) == (False, (11, 7, None))


@given(before=silence)
def test_no_usage_is_unknown(before: list[bytes]) -> None:
    assert stream_usage(b"".join([*before, *APIS[0].events])) is None


# -- plain answers


@by_name
def test_a_plain_answer_that_the_engine_broke_off(api: Api) -> None:
    assert plain_verdict(to_json(api.plain)) == (False, (11, 7, None))
    if api.plain_aborted is not None:
        assert plain_verdict(to_json(api.plain_aborted)) == (True, (11, 7, None))


@given(reasons=st.lists(st.sampled_from(["stop", "length", "abort", "tool_calls", None]), max_size=5))
def test_one_choice_that_was_broken_off_is_enough(reasons: list[str | None]) -> None:
    choices = [{"index": index, "finish_reason": reason} for index, reason in enumerate(reasons)]
    assert plain_verdict(to_json({"choices": choices}))[0] == ("abort" in reasons)


@pytest.mark.parametrize("text", ["abort", '"finish_reason": "abort"', '{"stop_reason": "abort"}'])
def test_the_word_in_a_text_or_a_stop_string_breaks_nothing_off(text: str) -> None:
    chat = {"choices": [{"message": {"content": text}, "finish_reason": "stop", "stop_reason": "abort"}]}
    messages = {**MESSAGES.plain, "content": [{"type": "text", "text": text, "stop_reason": "abort"}]}
    assert not plain_verdict(to_json(chat))[0]
    assert not plain_verdict(to_json(messages))[0]


@given(body=st.binary(max_size=60))
@example(body=b"")
@example(body=b'"abort"')
@example(body=b'{"choices":5,"x":"abort","usage":null}')
@example(body=b'{"usage":"abort"}')
@example(body=b'{"a":' * 100_000)
@example(body=b'{"x":"abort","choices":[[]]}')
def test_a_body_that_cannot_be_read_is_fine(body: bytes) -> None:
    assert plain_verdict(body) == (False, None)
