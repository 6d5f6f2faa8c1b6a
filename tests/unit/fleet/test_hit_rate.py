"""The recent prefix hit rate: between 0 and 1, unknown without prompts, blind to what a restart does to counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.fleet.hit_rate import HALF_LIFE_S, HitRate

tokens = st.integers(0, 100_000)


def test_the_first_reading_says_nothing_of_the_recent() -> None:
    rate = HitRate()
    rate.read(1_000_000, 900_000, 0.0)
    assert rate.ratio is None
    rate.read(1_000_100, 900_025, 1.0)
    assert rate.ratio == pytest.approx(0.25)


@given(steps=st.lists(st.tuples(st.floats(0, 100), tokens, st.floats(0, 1)), min_size=1))
def test_it_lies_between_the_rates_it_is_made_of(steps: list[tuple[float, int, float]]) -> None:
    rate, now_s, queries, hits = HitRate(), 0.0, 0.0, 0.0
    rate.read(queries, hits, now_s)
    seen = []
    for pause_s, looked_up, share in steps:
        now_s, queries, hits = now_s + pause_s, queries + looked_up, hits + looked_up * share
        rate.read(queries, hits, now_s)
        seen.append(share if looked_up else None)
    shares = [share for share in seen if share is not None]
    if rate.ratio is not None:
        assert min(shares) - 1e-6 <= rate.ratio <= max(shares) + 1e-6


def test_after_the_half_life_new_tokens_count_twice_as_much_as_old_ones() -> None:
    rate = HitRate()
    rate.read(0, 0, 0.0)
    rate.read(100, 100, 0.0)
    rate.read(200, 100, HALF_LIFE_S)
    assert rate.ratio == pytest.approx(1 / 3)


@pytest.mark.parametrize("after", [(10, 5), (10, 2000), (2000, 5), (None, None), (None, 5), (3000, None)])
def test_counters_that_fall_or_vanish_start_again(after: tuple[float | None, float | None]) -> None:
    rate = HitRate()
    rate.read(0, 0, 0.0)
    rate.read(1000, 500, 0.0)
    rate.read(*after, 0.0)
    assert rate.ratio == pytest.approx(0.5)
    rate.read(5000, 2500, 0.0)
    rate.read(6000, 3500, 0.0)
    assert rate.ratio is not None
    assert 0 <= rate.ratio <= 1


def test_a_long_silence_makes_it_unknown() -> None:
    rate = HitRate()
    rate.read(0, 0, 0.0)
    rate.read(1000, 500, 1.0)
    rate.read(1000, 500, 20 * HALF_LIFE_S)
    assert rate.ratio is None
