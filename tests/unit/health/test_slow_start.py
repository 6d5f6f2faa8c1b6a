"""Slow start: a share that grows to all, a limit that never starves and that nobody feels where there are no peers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from poise.health.slow_start import FULL, limit, share

seconds = st.floats(0, 1000)
shares = st.floats(0, 1)


@given(seconds, seconds, st.floats(0.001, 100))
def test_the_share_never_falls_and_is_full_in_the_end(first: float, later: float, slow_start_s: float) -> None:
    before, after = sorted((first, later))
    assert 0 <= share(0.0, before, slow_start_s) <= share(0.0, after, slow_start_s) <= FULL
    assert share(0.0, slow_start_s, slow_start_s) == FULL


@given(seconds)
def test_without_a_slow_start_the_share_is_full_at_once(now_s: float) -> None:
    assert share(now_s, now_s, 0.0) == FULL


@given(shares, st.integers(1, 64), st.integers(0, 10_000))
def test_the_limit_lies_between_one_and_the_mean_of_the_peers(of_peers: float, peers: int, in_flight: int) -> None:
    assert 1 <= limit(of_peers, peers, in_flight) <= max(1.0, in_flight / peers) or of_peers >= FULL


@given(shares)
def test_alone_there_is_no_limit(of_peers: float) -> None:
    assert limit(of_peers, 0, 0) == math.inf
