"""What an engine may be started with, and which profile comes out of it."""

import pytest

from poise.core.errors import ConfigError
from poise.engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"speed": 0}, "speed 0 is not above 0"),
        ({"output_tokens_mean": -1}, "output_tokens_mean -1 is not above 0"),
        ({"count": 0}, "count 0 is below 1"),
        ({"data_parallel_size": 0}, "data_parallel_size 0 is below 1"),
        ({"port": 65_530, "count": 10}, "ports 65530 to 65539 are not in 0-65535"),
        ({"port": -1}, "ports -1 to -1"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**{"port": 8000, **wrong})  # type: ignore[arg-type]


def test_what_is_not_given_is_the_profiles() -> None:
    settings = EngineSettings(port=8000)
    assert settings.effective_profile() == settings.profile


def test_flags_override_the_profile() -> None:
    profile = EngineSettings(
        port=8000,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_num_queued_reqs=9,
        max_num_queued_tokens=900,
        num_gpu_blocks=100,
        priority_scheduling=True,
    ).effective_profile()
    limits = profile.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (4, 64)
    assert (limits.max_num_queued_reqs, limits.max_num_queued_tokens, limits.priority) == (9, 900, True)
    assert (profile.kv_blocks, profile.max_model_len_tokens) == (100, 1600)


def test_a_request_never_may_be_longer_than_the_cache() -> None:
    profile = EngineSettings(port=8000, num_gpu_blocks=10, max_model_len=4096).effective_profile()
    assert profile.max_model_len_tokens == 160
    assert EngineSettings(port=8000, max_model_len=4096).effective_profile().max_model_len_tokens == 4096


def test_more_sequences_than_tokens_raise_the_token_budget_unless_it_was_given() -> None:
    assert EngineSettings(port=1, max_num_seqs=9000).effective_profile().limits.max_num_batched_tokens == 9000
    with pytest.raises(ConfigError, match="max_num_seqs 100"):
        EngineSettings(port=1, max_num_seqs=100, max_num_batched_tokens=50).effective_profile()
