"""The engine puts times on what its scheduler does, and guards the order of its calls."""

from dataclasses import replace

import pytest

from poise.core.errors import PoiseError
from poise.engine_model.engine import Engine
from poise.engine_model.profile import EngineProfile, SchedulerLimits, StepTimes
from poise.engine_model.scheduler import Rejection
from poise.engine_model.sequence import Sequence, SequenceState

PROFILE = EngineProfile(
    name="tiny",
    description="one second a token, one for the step",
    step=StepTimes(
        weights_s=0.0,
        compute_s_per_token=1.0,
        attention_s_per_pair=0.0,
        kv_read_s_per_token=0.0,
        request_s=0.0,
        fixed_s=1.0,
    ),
    kv_blocks=10,
    block_size_tokens=4,
    limits=SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=8, async_scheduling=False),
)


def run(engine: Engine, now_s: float) -> float:
    while (duration_s := engine.begin_step(now_s)) is not None:
        now_s += duration_s
        engine.end_step(now_s)
    return now_s


def test_times_are_those_of_the_steps() -> None:
    engine, first, second = Engine(PROFILE), Sequence(5, 2), Sequence(4, 1)
    engine.submit(first, 10.0)
    engine.submit(second, 10.5)
    assert (engine.running, engine.waiting) == (0, 2)
    assert run(engine, 11.0) == 24.0
    assert (first.arrived_s, first.admitted_s, first.first_token_s, first.ended_s) == (10.0, 11.0, 17.0, 19.0)
    assert (second.arrived_s, second.admitted_s, second.first_token_s, second.ended_s) == (10.5, 19.0, 24.0, 24.0)
    assert engine.counters.steps == 3
    assert engine.begin_step(30.0) is None


def test_a_prompt_in_chunks_is_admitted_once_and_a_preempted_one_keeps_its_first_token_time() -> None:
    engine, long = Engine(PROFILE), Sequence(12, 1)
    engine.submit(long, 0.0)
    assert run(engine, 0.0) == 14.0
    assert (long.admitted_s, long.first_token_s) == (0.0, 14.0)
    engine = Engine(replace(PROFILE, kv_blocks=4, limits=replace(PROFILE.limits, max_num_seqs=2)))
    first, second = Sequence(4, 8), Sequence(4, 8)
    engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    run(engine, 0.0)
    assert second.preemptions == 1
    assert (second.admitted_s, second.first_token_s) == (0.0, 9.0)


def test_gauges_follow_the_work() -> None:
    engine = Engine(PROFILE)
    engine.submit(Sequence(8, 2), 0.0)
    engine.submit(Sequence(8, 2), 0.0)
    assert engine.begin_step(0.0) == 9.0
    assert (engine.running, engine.waiting, engine.kv_usage_ratio, engine.step_tokens) == (1, 1, 0.2, 8)
    assert engine.stepping
    engine.end_step(9.0)
    assert not engine.stepping and engine.step_tokens == 0
    run(engine, 9.0)
    assert (engine.running, engine.waiting, engine.kv_usage_ratio) == (0, 0, 0.0)


def test_an_abort_has_a_time_and_happens_once() -> None:
    engine, sequence = Engine(PROFILE), Sequence(8, 20)
    engine.submit(sequence, 0.0)
    engine.begin_step(0.0)
    engine.abort(sequence, 3.0)
    engine.abort(sequence, 4.0)
    assert (sequence.state, sequence.ended_s, engine.kv_usage_ratio) == (SequenceState.ABORTED, 3.0, 0.0)
    assert engine.end_step(9.0).started == []
    assert engine.counters.ended == {"abort": 1}


def test_a_sequence_that_was_never_queued_can_be_aborted() -> None:
    engine, sequence = Engine(PROFILE), Sequence(8, 20)
    engine.abort(sequence, 1.0)
    assert engine.counters.ended == {}


def test_queue_limits_refuse() -> None:
    engine = Engine(replace(PROFILE, limits=replace(PROFILE.limits, max_num_queued_reqs=1)))
    assert engine.submit(Sequence(1, 1), 0.0) is None
    assert engine.submit(Sequence(1, 1), 0.0) is Rejection.REQUESTS
    assert (engine.running, engine.waiting) == (0, 1)


def test_steps_are_begun_and_ended_in_turn() -> None:
    engine = Engine(PROFILE)
    with pytest.raises(PoiseError, match="ended that was not begun"):
        engine.end_step(0.0)
    engine.submit(Sequence(1, 2), 0.0)
    engine.begin_step(0.0)
    with pytest.raises(PoiseError, match="begun before the last one ended"):
        engine.begin_step(1.0)
