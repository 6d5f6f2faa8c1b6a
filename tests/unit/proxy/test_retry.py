"""The retry budget against a model that remembers every request."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.proxy.retry import WINDOW_S, RetryBudget

REQUEST, RETRY = "request", "retry"


class NaiveBudget:
    """Keeps the second in which each request and each retry fell."""

    def __init__(self, ratio: float, floor: int) -> None:
        self._ratio = ratio
        self._floor = floor
        self._seen: list[tuple[str, int]] = []

    def request(self, now_s: float) -> None:
        self._seen.append((REQUEST, int(now_s)))

    def allows(self, now_s: float) -> bool:
        recent = [kind for kind, second in self._seen if second > now_s - WINDOW_S]
        allowed = recent.count(RETRY) < max(self._floor, self._ratio * recent.count(REQUEST))
        if allowed:
            self._seen.append((RETRY, int(now_s)))
        return allowed


steps = st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0, 1.01, 9.0, 9.99, 10.0, 11.0]) | st.floats(0, 30)
runs = st.lists(st.tuples(st.sampled_from([REQUEST, REQUEST, RETRY]), steps, st.integers(1, 5)), max_size=60)
ratios = st.floats(0, 1)
floors = st.integers(0, 5)


@given(start_s=st.floats(0, 1e6), run=runs, ratio=ratios, floor=floors)
def test_it_allows_what_the_naive_budget_allows(
    start_s: float, run: list[tuple[str, float, int]], ratio: float, floor: int
) -> None:
    budget, naive, now_s = RetryBudget(ratio, floor), NaiveBudget(ratio, floor), start_s
    for kind, step_s, times in run:
        now_s += step_s
        for _ in range(times):
            if kind == REQUEST:
                budget.request(now_s)
                naive.request(now_s)
            else:
                assert budget.allows(now_s) == naive.allows(now_s)


@given(requests=st.integers(0, 200), ratio=ratios, floor=floors)
def test_retries_are_a_share_of_requests_or_the_floor(requests: int, ratio: float, floor: int) -> None:
    budget = RetryBudget(ratio, floor)
    for _ in range(requests):
        budget.request(5.0)
    allowed = sum(budget.allows(5.0) for _ in range(requests + floor + 2))
    assert allowed == ceil(max(floor, ratio * requests))


@given(at_s=st.floats(0, 1e6), age_s=st.floats(0, 30))
def test_what_is_older_than_the_window_does_not_count_and_what_is_a_second_younger_does(
    at_s: float, age_s: float
) -> None:
    budget = RetryBudget(1.0, 0)
    budget.request(at_s)
    now_s = at_s + age_s
    allowed = budget.allows(now_s)
    if now_s - at_s >= WINDOW_S:
        assert not allowed
    elif now_s - at_s < WINDOW_S - 1:
        assert allowed


@pytest.mark.parametrize("requests_per_s", [1, 1000])
def test_its_size_does_not_depend_on_traffic(requests_per_s: int) -> None:
    budget = RetryBudget(0.1, 10)
    for number in range(60 * requests_per_s):
        budget.request(number / requests_per_s)
    assert len(budget._slots) <= WINDOW_S + 1
