"""Arrivals have the rate and the spread of a Poisson process, and depend on the seed alone."""

from itertools import islice
from random import Random
from statistics import fmean, stdev

import pytest

from poise.workload.arrivals import poisson_gaps_s


@pytest.mark.parametrize("rate_per_s", [0.1, 1.0, 50.0])
def test_gaps_are_exponential(rate_per_s: float) -> None:
    gaps_s = list(islice(poisson_gaps_s(rate_per_s, Random(1)), 20_000))
    mean_s = 1 / rate_per_s
    assert fmean(gaps_s) == pytest.approx(mean_s, rel=0.03)
    assert stdev(gaps_s) == pytest.approx(mean_s, rel=0.03), "the deviation of an exponential is its mean"
    assert sum(gap_s > 3 * mean_s for gap_s in gaps_s) / 20_000 == pytest.approx(0.0498, abs=0.006), "no tail is cut"


def test_the_same_seed_gives_the_same_arrivals() -> None:
    first, again, other = (list(islice(poisson_gaps_s(1.0, Random(seed)), 5)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_above_0(rate_per_s: float) -> None:
    with pytest.raises(ValueError, match="rate_per_s"):
        next(poisson_gaps_s(rate_per_s, Random(1)))
