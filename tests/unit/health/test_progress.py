"""Progress: an engine with requests and standing counters is stalled, nothing else is."""

from hypothesis import given
from hypothesis import strategies as st

from poise.core.reading import LoadReading
from poise.health.progress import Progress
from poise.health.settings import HealthSettings

SETTINGS = HealthSettings(stall_s=10.0)
COUNTS = st.none() | st.integers(0, 3).map(float)
READINGS = st.builds(
    LoadReading, running=COUNTS, waiting=COUNTS, generation_tokens=COUNTS, prompt_tokens=st.none() | st.just(5.0)
)
STEPS = st.lists(st.tuples(st.floats(0.1, 8), READINGS), min_size=1, max_size=20)


def hung(running: float = 1.0, tokens: float = 7.0, **more: float) -> LoadReading:
    return LoadReading(running=running, generation_tokens=tokens, **more)


def test_requests_without_tokens_are_a_stall_after_a_while() -> None:
    progress = Progress(SETTINGS)
    for now_s, stalled in ((0.0, False), (9.9, False), (10.0, True), (60.0, True)):
        progress.note(hung(), now_s, None)
        assert progress.stalled is stalled
    progress.note(hung(tokens=8.0), 61.0, None)
    assert not progress.stalled


def test_queued_requests_count_and_prompts_that_are_read_are_progress() -> None:
    progress = Progress(SETTINGS)
    progress.note(hung(running=0.0, waiting=2.0), 0.0, None)
    progress.note(hung(running=0.0, waiting=2.0), 10.0, None)
    assert progress.stalled
    progress.note(hung(prompt_tokens=1.0), 11.0, None)
    assert not progress.stalled


def test_output_that_the_gateway_saw_itself_is_progress() -> None:
    progress = Progress(SETTINGS)
    for now_s, stalled in ((0.0, False), (14.0, False), (15.0, True)):
        progress.note(hung(), now_s, 5.0)
        assert progress.stalled is stalled


@given(STEPS)
def test_it_is_stalled_if_the_readings_of_stall_s_all_say_so(steps: list[tuple[float, LoadReading]]) -> None:
    progress, now_s = Progress(SETTINGS), 0.0
    seen: list[tuple[float, LoadReading]] = []
    for seconds, reading in steps:
        now_s += seconds
        progress.note(reading, now_s, None)
        seen.append((now_s, reading))
        totals = [(at_s, _tokens(one), bool(one.running or one.waiting)) for at_s, one in seen]
        still = []
        for at_s, tokens, busy in reversed(totals):
            still.append(at_s)
            if tokens is None or not busy or tokens != totals[-1][1]:
                still = still[:-1] if tokens != totals[-1][1] else still
                break
        known = totals[-1][1] is not None and totals[-1][2]
        assert progress.stalled is (known and now_s - still[-1] >= 10.0)


def _tokens(reading: LoadReading) -> float | None:
    if reading.generation_tokens is None and reading.prompt_tokens is None:
        return None
    return (reading.generation_tokens or 0.0) + (reading.prompt_tokens or 0.0)
