"""Aliases, canaries and fallbacks: what a name stands for, and what is wrong with a configuration of names."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.errors import ConfigError
from poise.routing.model_names import NO_NAMES, ModelNames

CANARY = ModelNames({"gpt-4o": [("a", 9), ("b", 1)]}, {})
weights = st.lists(st.floats(0, 1e6), min_size=1, max_size=5).filter(any)
sessions = st.integers(0, 2**64 - 1)


def variants(values: list[float]) -> list[tuple[str, float]]:
    return [(f"m{number}", weight) for number, weight in enumerate(values)]


def test_a_name_that_is_no_alias_stands_for_itself() -> None:
    for names in (NO_NAMES, CANARY):
        assert names.resolve("qwen", None, Random(0)) == "qwen"
        assert not names.is_alias("qwen") and names.fallbacks("qwen") == ()


@given(weights, st.one_of(st.none(), sessions), st.integers())
def test_only_models_with_a_weight_are_chosen(values: list[float], session: int | None, seed: int) -> None:
    names = ModelNames({"x": variants(values)}, {})
    assert names.resolve("x", session, Random(seed)) in names.aliases["x"]


@given(sessions, st.lists(st.integers(), min_size=2, max_size=2))
def test_a_session_always_gets_the_same_model(session: int, seeds: list[int]) -> None:
    assert len({CANARY.resolve("gpt-4o", session, Random(seed)) for seed in seeds}) == 1


def test_shares_follow_the_weights_with_and_without_sessions() -> None:
    random, count = Random(1), 20_000
    for session in (lambda: random.getrandbits(64), lambda: None):
        got = Counter(CANARY.resolve("gpt-4o", session(), random) for _ in range(count))
        assert abs(got["b"] / count - 0.1) < 0.01


def test_a_change_of_weights_moves_no_more_sessions_than_it_must() -> None:
    wider = ModelNames({"gpt-4o": [("a", 8), ("b", 2)]}, {})
    random = Random(2)
    moves = Counter(
        (CANARY.resolve("gpt-4o", session, random), wider.resolve("gpt-4o", session, random))
        for session in [random.getrandbits(64) for _ in range(20_000)]
    )
    assert ("b", "a") not in moves
    assert abs(moves["a", "b"] / 20_000 - 0.1) < 0.01


def test_two_aliases_do_not_move_the_same_sessions() -> None:
    names = ModelNames({"x": [("a", 1), ("b", 1)], "y": [("a", 1), ("b", 1)]}, {})
    pairs = Counter((names.resolve("x", s, Random()), names.resolve("y", s, Random())) for s in range(4_000))
    assert min(pairs.values()) > 800


def test_a_models_own_name_may_send_a_share_elsewhere() -> None:
    names = ModelNames({"qwen": [("qwen", 1), ("qwen-next", 1)]}, {"qwen": ["llama"]})
    got = {names.resolve("qwen", session, Random()) for session in range(100)}
    assert got == {"qwen", "qwen-next"}
    assert names.fallbacks("qwen") == ("llama",) and names.fallbacks("qwen-next") == ()


def test_models_may_stand_in_for_each_other() -> None:
    names = ModelNames({}, {"a": ["b"], "b": ["a"]})
    assert (names.fallbacks("a"), names.fallbacks("b")) == (("b",), ("a",))


@pytest.mark.parametrize(
    ("aliases", "fallbacks", "said"),
    [
        ({"a": [("a", 1)]}, {}, "models.aliases.a stands for itself"),
        ({"a": [("b", 1)], "b": [("a", 1)]}, {}, "models.aliases.a names b, which is an alias itself"),
        ({"a": [("b", 1)], "b": [("c", 1)]}, {}, "name the models: c"),
        ({"a": []}, {}, "models.aliases.a stands for no model"),
        ({"a": [("b", 0), ("c", 0)]}, {}, "models.aliases.a stands for no model"),
        ({"a": [("b", -1)]}, {}, "gives b the weight -1"),
        ({"a": [("b", float("nan"))]}, {}, "gives b the weight nan"),
        ({"a": [("b", float("inf"))]}, {}, "gives b the weight inf"),
        ({"a": [("b", 1), ("b", 2)]}, {}, "names b twice"),
        ({"": [("b", 1)]}, {}, "cannot be a model's name"),
        ({"a": [("b\r\nx: y", 1)]}, {}, "cannot be a model's name"),
        ({"a": [("b" * 257, 1)]}, {}, "cannot be a model's name"),
        ({}, {"a": []}, "models.fallbacks.a names no model"),
        ({}, {"a": ["b", "a"]}, "models.fallbacks.a names a itself"),
        ({}, {"a": ["b", "b"]}, "models.fallbacks.a names b twice"),
        ({"x": [("b", 1)]}, {"a": ["x"]}, "models.fallbacks.a names x, which is an alias itself"),
        ({"x": [("b", 1)]}, {"x": ["c"]}, "give the fallbacks of what it stands for: b"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(
    aliases: dict[str, list[tuple[str, float]]], fallbacks: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        ModelNames(aliases, fallbacks)
    assert said in str(raised.value) and "hint:" in str(raised.value)
