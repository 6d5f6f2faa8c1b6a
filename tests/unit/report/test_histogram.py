"""A histogram counts what a list of all values would."""

from math import fsum, inf, isclose

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from poise.report.histogram import DECISION_BUCKETS_S, LATENCY_BUCKETS_S, Histogram

bounds = st.lists(st.floats(-1e3, 1e3), unique=True, max_size=8).map(sorted)


@given(buckets=bounds, data=st.data())
def test_counts_are_those_of_a_list(buckets: list[float], data: st.DataObject) -> None:
    near = st.sampled_from(buckets) if buckets else st.nothing()
    values = data.draw(st.lists(st.floats(-2e3, 2e3) | near, max_size=40))
    histogram = Histogram(buckets)
    for value in values:
        histogram.observe(value)
    for index, bound in enumerate([*buckets, inf]):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)
    assert histogram.count == len(values)
    assert isclose(histogram.total, fsum(values), abs_tol=1e-6)


@given(value=st.floats(0, 1e4))
@example(value=0.0)
@example(value=LATENCY_BUCKETS_S[-1])
def test_a_value_is_in_exactly_one_bucket(value: float) -> None:
    histogram = Histogram(LATENCY_BUCKETS_S)
    histogram.observe(value)
    (index,) = (index for index, count in enumerate(histogram.counts) if count)
    assert index == len(LATENCY_BUCKETS_S) or value <= LATENCY_BUCKETS_S[index]
    assert index == 0 or value > LATENCY_BUCKETS_S[index - 1]


@pytest.mark.parametrize("buckets", [LATENCY_BUCKETS_S, DECISION_BUCKETS_S])
def test_buckets_rise_from_above_zero(buckets: tuple[float, ...]) -> None:
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] > 0
