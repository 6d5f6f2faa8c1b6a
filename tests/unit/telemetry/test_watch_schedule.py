"""When watches take their turns, and what is logged of what they find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from poise.core.errors import ConfigError
from poise.telemetry.conditions import Conditions
from poise.telemetry.settings import TelemetrySettings
from poise.telemetry.watch import Schedule


def _schedule(now_s: float, interval_s: float = 0.5) -> Schedule:
    return Schedule(interval_s, 0.4, interval_s, interval_s, 100.0, lambda: now_s)


@given(elapsed_s=st.floats(0, 1e6), position=st.integers(0, 63))
def test_turns_stay_on_a_grid_and_are_never_taken_twice(elapsed_s: float, position: int) -> None:
    offset_s = 0.5 * position / 64
    pause_s = _schedule(100.0 + elapsed_s).pause_s(offset_s)
    assert 0.024 < pause_s <= 0.525
    turns = (elapsed_s + pause_s - offset_s) / 0.5
    assert turns == pytest.approx(round(turns), abs=1e-6)


@pytest.mark.parametrize(("elapsed_s", "pause_s"), [(0.0, 0.5), (0.3, 0.2), (0.499999, 0.500001), (0.5, 0.5)])
def test_a_timer_that_is_a_little_early_does_not_take_its_turn_twice(elapsed_s: float, pause_s: float) -> None:
    assert _schedule(100.0 + elapsed_s).pause_s(0.0) == pytest.approx(pause_s)


def test_first_turns_are_spread_over_the_interval() -> None:
    offsets_s = [0.5 * position / 8 for position in range(8)]
    assert [_schedule(100.0).first_pause_s(offset_s) for offset_s in offsets_s] == offsets_s


def test_a_condition_is_logged_when_it_changes_and_forgotten_with_its_replica() -> None:
    conditions = Conditions()
    with capture_logs() as logs:
        for problem in (None, "x", "y", "x", None, None, "z"):
            conditions.report("a", "page", problem)
        conditions.report("b", "page", "x")
        conditions.forget_all_but({"b"})
        conditions.report("a", "page", None)
        conditions.report("b", "page", None)
    assert [(entry["log_level"], entry["replica"], entry.get("problem")) for entry in logs] == [
        ("warning", "a", "x"), ("info", "a", None), ("warning", "a", "z"), ("warning", "b", "x"), ("info", "b", None),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["interval_s", "timeout_s", "models_interval_s", "models_timeout_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_durations_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"telemetry.{name} is"):
        TelemetrySettings(**{name: value})
