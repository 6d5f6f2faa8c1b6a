"""Probes: refused is dead at once, missed is ill after some, and whoever is at work is neither."""

from hypothesis import given
from hypothesis import strategies as st

from poise.health.probes import Probe, ProbeHistory, Verdict
from poise.health.settings import HealthSettings

SETTINGS = HealthSettings(interval_s=1.0, timeout_s=2.0, failures=3)
PROBES = st.sampled_from([Probe.WELL, Probe.MISSED, Probe.REFUSED])


def after(*probes: int, at_work_s: float | None = None, now_s: float = 100.0) -> int:
    history = ProbeHistory(SETTINGS)
    for probe in probes:
        history.note(probe, now_s, at_work_s)
    return history.verdict


@given(st.lists(PROBES))
def test_the_last_good_probe_forgets_all_before(probes: list[int]) -> None:
    assert after(*probes, Probe.WELL) == Verdict.WELL


@given(st.lists(PROBES), st.lists(st.just(Probe.MISSED)), st.none() | st.floats(0, 100))
def test_a_refused_one_is_dead_until_it_answers(before: list[int], missed: list[int], at_work_s: float | None) -> None:
    assert after(*before, Probe.REFUSED, *missed, at_work_s=at_work_s) == Verdict.DEAD


@given(st.integers(0, 9), st.none() | st.floats(0, 100))
def test_misses_count_from_the_limit_on_unless_it_is_at_work(misses: int, at_work_s: float | None) -> None:
    busy = at_work_s is not None and at_work_s >= 97
    verdict = after(*[Probe.MISSED] * misses, at_work_s=at_work_s)
    assert verdict == (Verdict.FAILING if misses >= 3 and not busy else Verdict.WELL)


def test_work_that_stops_is_no_excuse_any_more_and_work_that_is_taken_up_is_one_again() -> None:
    history = ProbeHistory(SETTINGS)
    verdicts = []
    for now_s, at_work_s in ((1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (6.0, 3.0), (7.0, 3.0), (8.0, 8.0)):
        history.note(Probe.MISSED, now_s, at_work_s)
        verdicts.append(history.verdict)
    assert verdicts == [*[Verdict.WELL] * 4, Verdict.FAILING, Verdict.WELL]
