"""The load score with numbers worked out by hand, and what becomes of missing terms."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.errors import ConfigError
from poise.routing.load_score import GPU, KV, QUEUE, TIME, LoadWeights, effective_weights, load_score
from support.fleets import Load, fleet_of, loads, ratios

WEIGHTS = LoadWeights()


@pytest.mark.parametrize(
    ("load", "score"),
    [
        (Load(kv=0.0, waiting=0.0, gpu=0.0), 0.0),
        (Load(kv=1.0, waiting=20.0, gpu=1.0), 1.0),
        (Load(kv=0.6, waiting=10.0, gpu=0.5), 0.5 * 0.6 + 0.3 * 0.5 + 0.2 * 0.5),
        (Load(kv=0.6, waiting=500.0, gpu=0.5), 0.5 * 0.6 + 0.3 + 0.2 * 0.5),
        (Load(kv=0.9, waiting=0.0, gpu=0.0), 0.45),
        (Load(kv=0.0, waiting=5.0, gpu=0.0), 0.075),
        (Load(kv=0.0, waiting=0.0, gpu=0.9), 0.18),
    ],
)
def test_score_of_known_terms(load: Load, score: float) -> None:
    assert load_score(fleet_of([load]).at(0), WEIGHTS) == pytest.approx(score)


def test_recent_request_time_counts_only_with_a_weight() -> None:
    fleet = fleet_of([Load(kv=0.4, waiting=0.0, gpu=0.0)])
    fleet.at(0).request_time_s = 15.0
    assert load_score(fleet.at(0), WEIGHTS) == pytest.approx(0.2)
    assert load_score(fleet.at(0), LoadWeights(time=0.2)) == pytest.approx(0.2 + 0.2 * 0.5)
    fleet.at(0).request_time_s = 300.0
    assert load_score(fleet.at(0), LoadWeights(time=0.2)) == pytest.approx(0.2 + 0.2)


@given(load=loads().filter(lambda load: load.kv is not None), more=st.sampled_from(["kv", "queue", "gpu"]))
def test_score_rises_with_every_term(load: Load, more: str) -> None:
    replica = fleet_of([load]).at(0)
    before = load_score(replica, WEIGHTS)
    setattr(replica, more, getattr(replica, more) + 0.1)
    after = load_score(replica, WEIGHTS)
    assert after > before or (more == "queue" and replica.queue > 20)


def test_a_term_that_all_lack_is_dropped_and_its_weight_shared_out() -> None:
    without_gpu = effective_weights(WEIGHTS, KV | QUEUE)
    assert without_gpu is not None
    assert astuple(without_gpu) == pytest.approx((0.625, 0.375, 0.0, 0.0))
    full = fleet_of([Load(kv=1.0, waiting=20.0)])
    assert full.known_terms == KV | QUEUE
    assert load_score(full.at(0), without_gpu) == pytest.approx(1.0)


def test_nothing_known_at_all_scores_0() -> None:
    fleet = fleet_of([Load()])
    assert fleet.known_terms == 0
    assert effective_weights(WEIGHTS, 0) is None
    assert load_score(fleet.at(0), None) == 0.0


@given(weights=st.tuples(*[ratios()] * 4).filter(any), known=st.integers(0, KV | QUEUE | GPU | TIME))
def test_effective_weights_keep_their_sum_and_drop_what_is_unknown(weights: tuple[float, ...], known: int) -> None:
    effective = effective_weights(LoadWeights(*weights), known)
    if effective is None:
        assert not any(weight for weight, bit in zip(weights, (KV, QUEUE, GPU, TIME), strict=True) if known & bit)
        return
    assert sum(astuple(effective)) == pytest.approx(sum(weights))
    assert all(weight == 0 for weight, bit in zip(astuple(effective), (1, 2, 4, 8), strict=True) if not known & bit)


@pytest.mark.parametrize("weights", [{"kv": -0.1}, {"kv": 0, "queue": 0, "gpu": 0, "time": 0}])
def test_weights_that_say_nothing_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LoadWeights(**weights)
