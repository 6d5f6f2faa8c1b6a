"""Bodies of all routes in one neutral form, and the prompts that turns of one conversation share."""

import json

import pytest

from poise.engine.errors import ApiError
from poise.engine.requests import (
    Message,
    chat_prompt,
    plain_prompt,
    read_chat,
    read_completion,
    read_detokenize,
    read_embeddings,
    read_messages,
    read_responses,
    read_tokenize,
)


def raw(**body: object) -> bytes:
    return json.dumps(body).encode()


USER = {"role": "user", "content": "Hi"}


def test_a_conversation_begins_with_its_earlier_turns_and_their_answers() -> None:
    turns = [Message("system", "Be brief."), Message("user", "One?")]
    for answer, question in (("Yes indeed", "Two?"), ("", "Three?"), ("No", "Four?")):
        before = chat_prompt(turns, None)
        turns += [Message("assistant", answer), Message("user", question)]
        assert chat_prompt(turns, None).startswith(before + answer.encode())
        assert len(before) % 4 == 0


def test_roles_order_tools_and_content_make_a_different_prompt() -> None:
    prompts = [
        chat_prompt([Message("user", "a"), Message("user", "b")], None),
        chat_prompt([Message("user", "b"), Message("user", "a")], None),
        chat_prompt([Message("system", "a"), Message("user", "b")], None),
        chat_prompt([Message("user", "a"), Message("user", "b")], [{"type": "function"}]),
        chat_prompt([Message("user", "a"), Message("assistant", "b")], None),
        chat_prompt([Message("user", "a"), Message("assistant", None, [{"id": "call"}])], None),
    ]
    assert len(set(prompts)) == len(prompts)


def test_parts_of_content_are_joined_and_what_is_no_text_still_counts() -> None:
    text = chat_prompt([Message("user", "ab")], None)
    assert chat_prompt([Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], None) == text
    image = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
    assert b"y.png" in chat_prompt([Message("user", [image])], None)


def test_prompts_of_completions() -> None:
    assert plain_prompt("abcde") == b"abcde   "
    assert plain_prompt(["abcd"]) == b"abcd"
    assert plain_prompt([0x61626364, 0x65666768]) == b"abcdefgh"
    assert plain_prompt([[0x61626364]]) == b"abcd"
    for several in (["a", "b"], [], [[1], [2]], [{}]):
        with pytest.raises(ApiError) as caught:
            plain_prompt(several)
        assert caught.value.status == 400


def test_each_route_has_its_own_name_for_the_longest_answer() -> None:
    assert read_chat(raw(messages=[USER], max_tokens=5)).max_tokens == 5
    assert read_chat(raw(messages=[USER], max_tokens=5, max_completion_tokens=6)).max_tokens == 6
    assert read_chat(raw(messages=[USER])).max_tokens is None
    assert read_completion(raw(prompt="a")).max_tokens == 16
    assert read_responses(raw(input="a", max_output_tokens=7)).max_tokens == 7
    assert read_messages(raw(messages=[USER], max_tokens=8)).max_tokens == 8
    assert read_embeddings(raw(input="a")).max_tokens == 1


def test_routes_with_the_same_words_have_the_same_prompt() -> None:
    chat = read_chat(raw(messages=[{"role": "system", "content": "S"}, USER])).prompt
    assert read_responses(raw(input="Hi", instructions="S")).prompt == chat
    assert read_responses(raw(input=[USER], instructions="S")).prompt == chat
    assert read_messages(raw(messages=[USER], system="S", max_tokens=1)).prompt == chat
    assert read_tokenize(raw(messages=[{"role": "system", "content": "S"}, USER])).prompt == chat
    assert read_tokenize(raw(prompt="Hi")).prompt == read_completion(raw(prompt="Hi")).prompt


def test_the_rest_of_a_request_is_kept() -> None:
    wanted = read_chat(
        raw(
            model="m",
            messages=[USER],
            stream=True,
            stream_options={"include_usage": True},
            ignore_eos=True,
            priority=-3,
            seed=9,
            cache_salt="s",
            data_parallel_rank=1,
            unknown={"any": "thing"},
        )
    )
    assert (wanted.model, wanted.stream, wanted.include_usage, wanted.ignore_eos) == ("m", True, True, True)
    assert (wanted.priority, wanted.seed, wanted.cache_salt, wanted.rank) == (-3, 9, "s", 1)


@pytest.mark.parametrize(
    ("read", "body", "param"),
    [
        (read_chat, b"", "body"),
        (read_chat, b"{", "body"),
        (read_chat, raw(messages="no list"), "body"),
        (read_responses, raw(input=[1]), "body.input"),
        (read_detokenize, raw(tokens="abc"), "body"),
    ],
)
def test_malformed_bodies_are_bad_requests(read: object, body: bytes, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(body)  # type: ignore[operator]
    assert (caught.value.status, caught.value.kind, caught.value.param) == (400, "Bad Request", param)


def test_token_ids_to_detokenize() -> None:
    assert read_detokenize(raw(tokens=[1, 2])) == [1, 2]
