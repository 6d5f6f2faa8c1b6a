"""The data path's settings: defaults that fit each other, and time limits that are times."""

from dataclasses import FrozenInstanceError, fields
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.errors import ConfigError
from poise.proxy.settings import DataPathSettings, Timeouts

LIMITS = [limit.name for limit in fields(Timeouts)]


@given(name=st.sampled_from(LIMITS), seconds=st.floats(min_value=0, exclude_min=True))
def test_any_time_above_zero_is_a_limit(name: str, seconds: float) -> None:
    assert getattr(Timeouts(**{name: seconds}), name) == seconds


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("seconds", [0, -0.0, -1, -inf, nan])
def test_a_limit_that_is_no_time_is_named_with_its_value(name: str, seconds: float) -> None:
    with pytest.raises(ConfigError, match=rf"timeouts\.{name} is {seconds}\nhint: time limits are above 0"):
        Timeouts(**{name: seconds})


def test_defaults_fit_each_other() -> None:
    settings = DataPathSettings()
    timeouts, limits = settings.timeouts, settings.limits
    assert timeouts.connect_s < timeouts.hold_s < timeouts.first_output_s <= timeouts.idle_s < timeouts.total_s
    assert limits.head_bytes < limits.body_bytes < limits.buffered_bytes
    assert settings.retry.attempts >= 2
    assert 0 < settings.retry.budget_ratio < 1
    assert settings.cors.allow_origins == (), "no browser may call unless it is configured"


def test_settings_do_not_change_under_a_running_gateway() -> None:
    with pytest.raises(FrozenInstanceError):
        DataPathSettings().timeouts.total_s = 1.0  # type: ignore[misc]
