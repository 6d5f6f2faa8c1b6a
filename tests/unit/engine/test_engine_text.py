"""Text, tokens and block hashes: what shares a beginning shares blocks, and an answer comes back as it was."""

import json

from hypothesis import given
from hypothesis import strategies as st

from poise.engine.text import (
    TOKEN_BYTES,
    answer_text,
    block_hashes,
    cache_seed,
    from_token_ids,
    pad,
    token_count,
    token_ids,
)


@given(st.binary(max_size=50))
def test_padded_text_is_whole_tokens(text: bytes) -> None:
    padded = pad(text)
    assert len(padded) % TOKEN_BYTES == 0 and padded.startswith(text)
    assert 0 <= len(padded) - max(len(text), 1) < TOKEN_BYTES
    assert token_count(padded) == len(padded) // TOKEN_BYTES == token_count(text or b" ")


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_blocks_are_shared_up_to_the_first_difference(start: bytes, left: bytes, right: bytes) -> None:
    one, two = block_hashes(start + left, 4, seed=7), block_hashes(start + right, 4, seed=7)
    same = 0
    while same < min(len(one), len(two)) and (start + left)[: 16 * (same + 1)] == (start + right)[: 16 * (same + 1)]:
        same += 1
    assert one[:same] == two[:same]
    assert set(one[same:]).isdisjoint(two[same:])
    assert len(one) == len(start + left) // 16


def test_models_and_salts_share_nothing() -> None:
    text = b"x" * 64
    seeds = [cache_seed("a", None), cache_seed("b", None), cache_seed("a", "salt")]
    assert len({tuple(block_hashes(text, 4, seed=seed)) for seed in seeds}) == 3


def test_an_answer_depends_on_prompt_and_seed_alone() -> None:
    first = answer_text(b"prompt", 50, seed=1)
    assert first == answer_text(b"prompt", 50, seed=1)
    assert first != answer_text(b"prompt", 50, seed=2)
    assert first != answer_text(b"other!", 50, seed=1)
    assert len(first) == 50 * TOKEN_BYTES
    assert json.loads(f'"{first.decode()}"') == first.decode()


@given(st.text(alphabet=st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=60))
def test_token_ids_give_the_text_back(text: str) -> None:
    raw = text.encode()
    assert from_token_ids(token_ids(raw)) == raw
    assert len(token_ids(raw)) == token_count(raw)
