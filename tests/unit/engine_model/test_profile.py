"""The step-time formula, the limits, and the table of profiles."""

from dataclasses import replace

import pytest

from poise.core.errors import ConfigError
from poise.engine_model.hardware import Link, derive_step_times, kv_blocks
from poise.engine_model.profile import SchedulerLimits, StepTimes
from poise.engine_model.profiles import (
    DEFAULT_PROFILE,
    LLAMA_8B,
    PRO_6000,
    PRO_6000_LLAMA_8B,
    PROFILES,
    QWEN3_32B,
    RTX_4090,
    find_profile,
)

NOTHING = StepTimes(
    weights_s=0.0,
    compute_s_per_token=0.0,
    attention_s_per_pair=0.0,
    kv_read_s_per_token=0.0,
    request_s=0.0,
    fixed_s=0.0,
)


@pytest.mark.parametrize(
    ("constant", "value", "expected_s"),
    [
        ("weights_s", 3.0, 3.0),
        ("compute_s_per_token", 0.5, 5.0),
        ("attention_s_per_pair", 0.01, 0.2),
        ("kv_read_s_per_token", 0.1, 30.0),
        ("request_s", 2.0, 8.0),
        ("fixed_s", 7.0, 7.0),
        ("transfer_s_per_token", 0.25, 2.5),
    ],
)
def test_each_constant_pays_for_its_own_kind_of_work(constant: str, value: float, expected_s: float) -> None:
    times = replace(NOTHING, **{constant: value})
    assert times.duration_s(10, 20.0, 300, 4) == pytest.approx(expected_s)


def test_weights_and_compute_overlap_in_part() -> None:
    times = replace(NOTHING, weights_s=3.0, compute_s_per_token=0.4)
    assert times.duration_s(10, 0, 0, 0) == pytest.approx(5.0)


@pytest.mark.parametrize(("batch", "expected_ms"), [(1, 7.0), (32, 9.7), (64, 12.6), (128, 18.3)])
def test_an_h100_decodes_as_published(batch: int, expected_ms: float) -> None:
    step = find_profile("h100-llama-3.1-8b").step
    assert step.duration_s(batch, 0, batch * 1024, batch) * 1000 == pytest.approx(expected_ms, rel=0.07)


@pytest.mark.parametrize(("tokens", "measured_ms"), [(1, 9.7), (64, 11.2), (512, 34.6), (2048, 143.0)])
def test_an_a100_takes_as_long_over_its_matrices_as_measured(tokens: int, measured_ms: float) -> None:
    step = find_profile("a100-llama-3.1-8b").step
    linear = replace(NOTHING, weights_s=step.weights_s, compute_s_per_token=step.compute_s_per_token)
    assert linear.duration_s(tokens, 0, 0, 0) * 1000 == pytest.approx(measured_ms, rel=0.08)


def test_a_step_must_have_room_for_every_running_request() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs 65 is not in 1 to max_num_batched_tokens 64"):
        SchedulerLimits(max_num_seqs=65, max_num_batched_tokens=64)
    with pytest.raises(ConfigError, match="max_num_seqs 0"):
        SchedulerLimits(max_num_seqs=0)


def test_every_profile_is_found_by_its_name_and_can_serve() -> None:
    assert DEFAULT_PROFILE in PROFILES
    for name, profile in PROFILES.items():
        assert find_profile(name) is profile
        assert profile.name == name
        assert profile.max_model_len_tokens <= profile.kv_capacity_tokens
        assert 0.005 < profile.step.duration_s(1, 0, 1000, 1) < 0.05


def test_an_unknown_profile_names_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_profile("h100-llama")
    assert all(name in str(caught.value) for name in PROFILES)
    assert "hint: did you mean h100-llama-3.1-8b" in str(caught.value)
    with pytest.raises(ConfigError, match="hint: choose one of them"):
        find_profile("zzz")


def test_models_have_their_published_sizes() -> None:
    assert LLAMA_8B.kv_bytes_per_token == 128 * 1024
    assert QWEN3_32B.kv_bytes_per_token == 256 * 1024
    embedding = LLAMA_8B.hidden * LLAMA_8B.vocabulary
    assert LLAMA_8B.layer_weights + 2 * embedding == pytest.approx(8.03e9, rel=0.001)
    embedding = QWEN3_32B.hidden * QWEN3_32B.vocabulary
    assert QWEN3_32B.layer_weights + 2 * embedding == pytest.approx(32.76e9, rel=0.001)


def test_the_cards_shares_of_peak_give_back_the_fitted_constants() -> None:
    derived = derive_step_times(PRO_6000, LLAMA_8B)
    for constant in StepTimes.__dataclass_fields__:
        assert getattr(derived, constant) == pytest.approx(getattr(PRO_6000_LLAMA_8B, constant), rel=0.01)


def test_a_small_card_has_the_blocks_that_a_real_start_reported() -> None:
    blocks = kv_blocks(RTX_4090, LLAMA_8B, weight_bytes=16.06e9, overhead_bytes=1.15 * 2**30)
    assert blocks == pytest.approx(2588, rel=0.01)


def test_two_ranks_halve_the_work_and_pay_for_the_link() -> None:
    one = derive_step_times(PRO_6000, QWEN3_32B)
    two = derive_step_times(PRO_6000, QWEN3_32B, ranks=2, link=Link(bytes_per_s=20e9, latency_s=10e-6))
    assert two.weights_s == one.weights_s / 2
    assert two.kv_read_s_per_token == one.kv_read_s_per_token / 2
    assert two.fixed_s == pytest.approx(one.fixed_s + 128 * 10e-6)
    assert two.transfer_s_per_token == pytest.approx(128 * 5120 * 2 / 20e9)
    assert one.transfer_s_per_token == 0
