"""Facts of requests: what is read, what names a session, and that no body whatever raises."""

import json
import time
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from poise.core.request import RequestFacts
from poise.wire.body_schema import Body, decode_body
from poise.wire.facts import (
    COMPLETION_HEAD_BYTES,
    DECODED_BODY_BYTES,
    DECODED_OBJECTS,
    MODEL_NAME_CHARS,
    _decode_by_field,
    facts_from_json,
    facts_without_json,
)

LONG = "Tell me about the river that runs through the town. " * 6
"""Over one prefix block."""
SHORT = "hello"


def facts(body: dict[str, Any], session_key: bytes | None = None, user_key: bytes | None = None) -> RequestFacts:
    return facts_from_json(json.dumps(body).encode(), session_key, user_key)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "qwen", "messages": list(messages), **fields}


def text_part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


# -- plain fields


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "qwen"}, RequestFacts(model="qwen")),
        ({"model": 7}, RequestFacts()),
        ({"stream": True}, RequestFacts(stream=True)),
        ({"stream": "true"}, RequestFacts()),
        ({"stream": 1}, RequestFacts()),
        ({"stream": None}, RequestFacts()),
        ({"max_tokens": 5}, RequestFacts(output_tokens=5)),
        ({"max_completion_tokens": 6, "max_tokens": 5}, RequestFacts(output_tokens=6)),
        ({"max_output_tokens": 7}, RequestFacts(output_tokens=7)),
        ({"max_tokens": 0}, RequestFacts()),
        ({"max_tokens": -1}, RequestFacts()),
        ({"max_tokens": 1.5}, RequestFacts()),
        ({"max_tokens": 10**40}, RequestFacts(output_tokens=2**31)),
    ],
)
def test_plain_fields(fields: dict[str, Any], expected: RequestFacts) -> None:
    assert facts(fields) == expected


@given(length=st.integers(1, 2000))
def test_a_model_name_of_any_length_is_kept_short(length: int) -> None:
    model = facts({"model": "x" * length}).model
    assert model is not None
    assert model == "x" * length if length <= MODEL_NAME_CHARS else model == "x" * MODEL_NAME_CHARS + "…"


def test_an_empty_name_names_no_model() -> None:
    assert facts({"model": ""}).model is None


def test_one_odd_field_does_not_hide_the_others() -> None:
    read = facts(chat(user(LONG), stream=True, max_tokens="many"))
    assert read == msgspec.structs.replace(facts(chat(user(LONG), stream=True)), output_tokens=None)
    assert read.session is not None


# -- prompt size


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (chat(system("a" * 40), user("b" * 60), assistant(None)), 25),
        (chat(user([text_part("a" * 40), text_part("b" * 60)])), 25),
        (chat(user("é" * 50)), 25),
        (chat(user([text_part("a" * 40), {"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}}])), 10),
        (chat(user("a" * 40), tools=["x" * 38]), 20),
        (chat(user("a" * 40), assistant(None) | {"tool_calls": ["x" * 36]}), 20),
        ({"system": "a" * 40, "messages": [user("b" * 60)]}, 25),
        ({"system": [text_part("a" * 40)], "messages": [user("b" * 60)]}, 25),
        ({"messages": [user([{"type": "tool_result", "content": [text_part("a" * 80)]}])]}, 20),
        ({"messages": [user([{"type": "tool_result", "content": "a" * 80}])]}, 20),
        ({"prompt": "a" * 80}, 20),
        ({"prompt": ["a" * 36, "b" * 38]}, 20),
        ({"prompt": [1, 22, 333]}, 3),
        ({"prompt": [[1, 22], [333]]}, 3),
        ({"prompt": []}, 0),
        ({"prompt": 5}, 0),
        ({"input": "a" * 80}, 20),
        ({"input": "a" * 40, "instructions": "b" * 40}, 20),
        ({"input": [user("a" * 80)]}, 20),
        ({"input": [user([{"type": "input_text", "text": "a" * 80}])]}, 20),
        ({"input": [{"type": "function_call_output", "output": "a" * 78}]}, 20),
        ({"input": ["a" * 76]}, 20),
        ({"query": "a" * 38, "documents": ["b" * 36]}, 20),
    ],
)
def test_prompt_size_is_bytes_of_text_over_four_or_a_count_of_ids(body: dict[str, Any], tokens: int) -> None:
    assert facts(body).prompt_tokens == tokens


def test_a_body_too_large_to_be_read_whole_still_gives_its_small_fields() -> None:
    large = chat(user("x" * DECODED_BODY_BYTES), stream=True, prompt_cache_key="k")
    assert facts(large) == RequestFacts(model="qwen", stream=True, session=facts({}, b"k").session)


# -- session


def test_the_first_key_there_is_names_the_session() -> None:
    body = chat(user(LONG), prompt_cache_key="c", session_id="s", user="u")
    key_order = [facts(body, b"h", b"v")]
    for dropped in (None, "prompt_cache_key", "session_id"):
        body.pop(dropped or "", None)
        key_order.append(facts(body, None, b"v"))
    named_by_key = [facts({}, key).session for key in (b"h", b"c", b"s")]
    assert [read.session for read in key_order[:3]] == named_by_key
    assert key_order[3].session not in named_by_key


def test_a_session_key_needs_no_readable_body() -> None:
    assert facts_from_json(b"\xff{", b"h", None).session == facts_without_json(b"h").session is not None
    assert facts_without_json(None) == RequestFacts()


@pytest.mark.parametrize("absent", [None, "", {"id": 1}, ["u"], [], True, False])
@pytest.mark.parametrize("field", ["prompt_cache_key", "session_id", "user"])
def test_keys_of_odd_types_are_absent(field: str, absent: Any) -> None:
    for text in (SHORT, LONG):
        assert facts(chat(user(text), **{field: absent})) == facts(chat(user(text)))


@pytest.mark.parametrize("field", ["prompt_cache_key", "session_id", "user"])
def test_a_number_counts_as_its_text_and_a_long_key_is_hashed(field: str) -> None:
    number, text = (facts(chat(user(SHORT), **{field: value})) for value in (12345, "12345"))
    assert number.session == text.session is not None
    assert facts(chat(user(SHORT), **{field: 12346})).session != number.session
    long = facts(chat(user(SHORT), **{field: "k" * 10_240})).session
    assert long is not None
    assert 0 <= long < 2**64


def test_a_user_is_not_a_session_but_each_conversation_of_a_user_is() -> None:
    first, again, other = (facts(chat(user(text)), None, b"team") for text in (SHORT, SHORT, "goodbye"))
    assert first.session == again.session is not None
    assert other.session not in (None, first.session)
    assert facts(chat(user(SHORT)), None, b"other team").session not in (None, first.session)
    assert facts(chat(user(SHORT), user="team")).session == first.session


@pytest.mark.parametrize(
    "body", [{}, {"input": ["a" * 999]}, {"query": "a" * 999, "documents": ["b"]}, {"prompt": [[1] * 999]}]
)
def test_a_user_without_a_first_turn_names_no_session(body: dict[str, Any]) -> None:
    assert facts(body, None, b"team").session is None


@pytest.mark.parametrize(("size", "is_session"), [(0, False), (255, False), (256, True), (9999, True)])
def test_a_first_turn_alone_is_a_session_from_one_prefix_block(size: int, is_session: bool) -> None:
    for body in (chat(user("x" * size)), chat(system("x" * (size // 2)), user("x" * (size - size // 2))),
                 {"prompt": "x" * size}, {"input": "x" * size}):  # fmt: skip
        assert (facts(body).session is not None) == is_session


# -- the second turn of a conversation


@given(
    prompts=st.lists(st.text(), max_size=2),
    opening=st.text(min_size=1),
    later=st.lists(st.tuples(st.text(), st.text()), max_size=3),
)
def test_later_turns_of_a_chat_have_the_session_of_the_first(
    prompts: list[str], opening: str, later: list[tuple[str, str]]
) -> None:
    first = [*map(system, prompts), user(opening)]
    rest = [message for answer, question in later for message in (assistant(answer), user(question))]
    assert facts(chat(*first, *rest), None, b"u").session == facts(chat(*first), None, b"u").session is not None


def test_later_turns_in_each_api() -> None:
    rest = [assistant("yes"), user("and then?")]
    marked = text_part(LONG, cache_control={"type": "ephemeral"})
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    pairs = [
        (chat(user(LONG)), chat(user([text_part(LONG)]), *rest)),
        (chat(user([marked])), chat(user([text_part(LONG)]), *rest)),
        (chat(user([image, text_part(LONG)])), chat(user([image, text_part(LONG)]), *rest)),
        ({"system": [marked], "messages": [user(SHORT)]}, {"system": LONG, "messages": [user(SHORT), *rest]}),
        ({"input": LONG, "instructions": SHORT}, {"input": [user(LONG), *rest], "instructions": SHORT}),
        ({"prompt": LONG * 4}, {"prompt": LONG * 4 + "yes. And then?"}),
        ({"prompt": list(range(999))}, {"prompt": list(range(1999))}),
    ]
    for first, second in pairs:
        assert facts(first).session == facts(second).session is not None


def test_conversations_that_begin_differently_differ() -> None:
    def image(data: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": data}}

    bodies = [
        chat(user(LONG)), chat(user(LONG + "!")), chat(system("be brief"), user(LONG)),
        chat(system("be long"), user(LONG)), chat(user([text_part(LONG), image("a")])),
        chat(user([text_part(LONG), image("b")])), {"prompt": LONG}, {"prompt": "." + LONG},
    ]  # fmt: skip
    sessions = [facts(body).session for body in bodies]
    assert None not in sessions
    assert len(set(sessions)) == len(bodies) - 1, "a prompt is the same as one user message, nothing else is"


def test_a_completions_prompt_is_known_by_its_head() -> None:
    head = "x" * COMPLETION_HEAD_BYTES
    assert facts({"prompt": head + "a"}).session == facts({"prompt": head + "b"}).session
    assert facts({"prompt": head[1:] + "a"}).session != facts({"prompt": head[1:] + "b"}).session


def test_sessions_stay_the_same_between_releases() -> None:
    """Gateways of two releases stand side by side during an upgrade, and have to agree."""
    turn = xxhash.xxh3_64_intdigest(LONG.encode(), xxhash.xxh3_64_intdigest(b"be brief"))
    conversation = chat(system("be brief"), user(LONG))
    assert facts(conversation).session == turn
    assert facts(conversation, None, b"team").session == xxhash.xxh3_64_intdigest(b"team", turn)
    assert facts(conversation, b"key").session == xxhash.xxh3_64_intdigest(b"key")


# -- bodies of any kind

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
names = st.sampled_from(["role", "content", "text", "type", "image_url", "output", "x"])
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
bodies = st.dictionaries(st.sampled_from([*Body.__struct_fields__, "unknown"]), json_values, max_size=8)
keys = st.none() | st.binary(max_size=20)


def check(read: RequestFacts) -> None:
    """Whatever was sent, these are the types and ranges that others rely on."""
    assert read.model is None or isinstance(read.model, str)
    assert isinstance(read.stream, bool)
    assert read.session is None or 0 <= read.session < 2**64
    assert 0 <= read.prompt_tokens < 2**40
    assert read.output_tokens is None or 0 < read.output_tokens <= 2**31


@given(body=bodies, session_key=keys, user_key=keys)
def test_any_json_is_read_as_far_as_it_can_be(
    body: dict[str, Any], session_key: bytes | None, user_key: bytes | None
) -> None:
    check(facts(body, session_key, user_key))


@given(body=bodies, data=st.data())
def test_any_damage_to_json_is_survived(body: dict[str, Any], data: st.DataObject) -> None:
    encoded = bytearray(json.dumps(body).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(encoded) - 1))
        encoded[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
        if not encoded:
            break
    check(facts_from_json(bytes(encoded), None, b"u"))


@given(body=st.binary(max_size=200))
@example(b"")
@example(b"[]")
@example(b"null")
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":' * 100_000)
@example(b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
@example(b'{"model":"\xff","stream":true}')
@example(b'{"user":"\\ud800","messages":[{"role":"user","content":"\\udc00"}]}')
@example(b'{"prompt":"\\ud800"}')
@example(b'{"input":[{"role":5}]}')
@example(b'{"max_tokens":1e999}')
@example(b'{"stream":true,"stream":false}')
def test_any_bytes_are_survived(body: bytes) -> None:
    check(facts_from_json(body, None, b"u"))


@given(body=bodies)
def test_reading_field_by_field_gives_what_reading_at_once_does(body: dict[str, Any]) -> None:
    encoded = json.dumps(body).encode()
    try:
        at_once = decode_body(encoded)
    except (msgspec.MsgspecError, RecursionError):
        return
    by_field = _decode_by_field(encoded)
    for name in Body.__struct_fields__:
        one, other = getattr(at_once, name), getattr(by_field, name)
        assert bytes(one) == bytes(other) if isinstance(one, msgspec.Raw) else one == other


BOMBS = [
    (b'{"messages":[{}', b",{}", b"]"),
    (b'{"messages":[{"role":"user","content":[{}', b",{}", b"]}]"),
    (b'{"messages":[{"content":[{"content":[{}', b",{}", b"]}]}]"),
    (b'{"input":[{}', b',{"role":"user"}', b"]"),
    (b'{"messages":[{}', b",{}", b'],"stream":"neither"'),
]


@pytest.mark.parametrize(("before", "item", "after"), BOMBS)
def test_a_body_of_countless_objects_is_not_decoded(before: bytes, item: bytes, after: bytes) -> None:
    end = after + b',"model":"m","max_tokens":5}'
    body = before + item * ((DECODED_BODY_BYTES - len(before) - len(end)) // len(item)) + end
    began_s = time.process_time()
    read = facts_from_json(body, None, None)
    assert time.process_time() - began_s < 0.3
    assert (read.model, read.output_tokens, read.prompt_tokens) == ("m", 5, len(body) // 4)


def test_a_prompt_that_is_not_decoded_is_known_by_its_head() -> None:
    code = user("{" * (DECODED_OBJECTS + 1))
    turns = [chat(system(LONG * 5), code), chat(system(LONG * 5), code, assistant("ok"), user("go on"))]
    first, second = (facts(turn) for turn in turns)
    assert first.session == second.session is not None
    assert facts(chat(system("Another. " + LONG * 5), code)).session not in (None, first.session)
    assert facts(chat(user("{" * 40_000), prompt_cache_key="k")).session == facts({}, b"k").session


@pytest.mark.parametrize("field", ["model", "user", "prompt_cache_key", "session_id", "previous_response_id"])
def test_a_key_of_any_length_is_read_fast_or_not_at_all(field: str) -> None:
    body = json.dumps({field: "\n" * DECODED_BODY_BYTES, "stream": True, "max_tokens": 5}).encode()
    began_s = time.process_time()
    assert facts_from_json(body, None, None) == RequestFacts(stream=True, output_tokens=5)
    assert time.process_time() - began_s < 0.3


def test_a_forms_model_name_is_kept_short() -> None:
    assert len(facts_without_json(None, "m" * 10_000).model or "") == MODEL_NAME_CHARS + 1
