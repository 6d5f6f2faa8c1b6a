"""Continuous batching: tiny schedules with known answers, and what must hold for all of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.core.errors import PoiseError
from poise.engine_model.batch import Batch, StepOutput
from poise.engine_model.counters import Counters
from poise.engine_model.profile import EngineProfile, SchedulerLimits, StepTimes
from poise.engine_model.scheduler import Rejection, Scheduler
from poise.engine_model.sequence import Sequence, SequenceState

STEP_TIMES = StepTimes(
    weights_s=0.01,
    compute_s_per_token=1e-5,
    attention_s_per_pair=0.0,
    kv_read_s_per_token=0.0,
    request_s=0.0,
    fixed_s=0.0,
)
LIMITS = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=False)
PROFILE = EngineProfile(
    name="tiny", description="a tiny engine", step=STEP_TIMES, kv_blocks=64, block_size_tokens=4, limits=LIMITS
)


def make(kv_blocks: int = 64, **limits: object) -> Scheduler:
    changed = replace(LIMITS, **limits)  # type: ignore[arg-type]
    return Scheduler(replace(PROFILE, kv_blocks=kv_blocks, limits=changed), Counters())


def submit(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        assert scheduler.submit(sequence) is None


def step(scheduler: Scheduler) -> tuple[Batch, StepOutput]:
    batch = scheduler.schedule()
    assert batch is not None
    return batch, scheduler.postprocess(batch)


def run_out(scheduler: Scheduler, limit: int = 10_000) -> list[Sequence]:
    finished: list[Sequence] = []
    for _ in range(limit):
        batch = scheduler.schedule()
        if batch is None:
            return finished
        finished += scheduler.postprocess(batch).finished
    raise AssertionError("the scheduler never became idle")


def chunks_of(batch: Batch) -> list[tuple[int, int]]:
    return [(chunk.past, chunk.tokens) for chunk in batch.chunks]


def hashes(family: int, blocks: int) -> list[int]:
    return [family * 1000 + index for index in range(blocks)]


# -- known answers ---------------------------------------------------------------------------------------------------


def test_one_request_prefills_once_and_then_decodes_a_token_a_step() -> None:
    scheduler, sequence = make(), Sequence(10, 3)
    submit(scheduler, sequence)
    batch, output = step(scheduler)
    assert (chunks_of(batch), batch.decodes, batch.tokens) == ([(0, 10)], 0, 10)
    assert (output.started, output.decoded, output.finished) == ([sequence], [], [])
    assert scheduler.generated_tokens(sequence) == 1
    batch, output = step(scheduler)
    assert (chunks_of(batch), batch.decodes, batch.context_tokens) == ([], 1, 11)
    assert (output.decoded, output.finished) == ([sequence], [])
    batch, output = step(scheduler)
    assert batch.context_tokens == 12
    assert (output.decoded, output.finished, sequence.state) == ([sequence], [sequence], SequenceState.FINISHED)
    assert scheduler.schedule() is None
    assert scheduler.cache.pool.used == 0


def test_a_single_output_token_ends_with_the_prefill() -> None:
    scheduler, sequence = make(), Sequence(10, 1)
    submit(scheduler, sequence)
    _, output = step(scheduler)
    assert (output.started, output.finished) == ([sequence], [sequence])
    assert scheduler.schedule() is None


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decodes() -> None:
    scheduler = make(max_num_batched_tokens=16)
    short, long = Sequence(4, 9), Sequence(40, 2)
    submit(scheduler, short)
    step(scheduler)
    submit(scheduler, long)
    seen = [chunks_of(step(scheduler)[0]) for _ in range(4)]
    assert seen == [[(0, 15)], [(15, 15)], [(30, 10)], []]
    assert scheduler.generated_tokens(long) == 2 and long.state is SequenceState.FINISHED


def test_attention_pairs_grow_with_what_is_there_already() -> None:
    scheduler = make(max_num_batched_tokens=16)
    submit(scheduler, Sequence(24, 2))
    assert step(scheduler)[0].attention_pairs == 16 * 8
    assert step(scheduler)[0].attention_pairs == 8 * (16 + 4)


def test_requests_share_the_token_budget_in_order_of_arrival() -> None:
    scheduler = make(max_num_batched_tokens=16)
    submit(scheduler, Sequence(10, 2), Sequence(10, 2), Sequence(1, 2))
    assert chunks_of(step(scheduler)[0]) == [(0, 10), (0, 6)]
    batch, _ = step(scheduler)
    assert (batch.decodes, chunks_of(batch)) == (1, [(6, 4), (0, 1)])


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make(max_num_seqs=2)
    submit(scheduler, *(Sequence(4, 2) for _ in range(5)))
    running = []
    while (batch := scheduler.schedule()) is not None:
        running.append(len(scheduler.running))
        scheduler.postprocess(batch)
    assert running == [2, 2, 2, 2, 1, 1]


def test_a_planned_step_does_not_take_up_what_arrives_while_the_one_before_it_runs() -> None:
    for planned_ahead, expected in ((False, 1), (True, 0)):
        scheduler = make(async_scheduling=planned_ahead)
        submit(scheduler, Sequence(4, 9))
        batch = scheduler.schedule()
        assert batch is not None
        submit(scheduler, Sequence(4, 9))
        scheduler.postprocess(batch)
        assert len(step(scheduler)[0].chunks) == expected
        assert len(step(scheduler)[0].chunks) == 1 - expected


def test_an_idle_engine_takes_a_request_up_at_once_even_if_it_came_during_the_last_step() -> None:
    scheduler = make(async_scheduling=True)
    submit(scheduler, Sequence(4, 1))
    batch = scheduler.schedule()
    assert batch is not None
    late = Sequence(4, 1)
    submit(scheduler, late)
    scheduler.postprocess(batch)
    assert step(scheduler)[1].finished == [late]


# -- prefix cache ----------------------------------------------------------------------------------------------------


def test_a_second_request_computes_only_what_the_first_did_not() -> None:
    scheduler = make()
    submit(scheduler, Sequence(17, 1, hashes(1, 4)))
    run_out(scheduler)
    second = Sequence(30, 1, hashes(1, 7))
    submit(scheduler, second)
    assert chunks_of(step(scheduler)[0]) == [(16, 14)]
    assert second.cached_tokens == 16
    assert (scheduler.counters.prefix_queries_tokens, scheduler.counters.prefix_hits_tokens) == (47, 16)


def test_the_last_token_of_a_full_hit_is_computed_again() -> None:
    scheduler = make()
    submit(scheduler, Sequence(16, 1, hashes(1, 4)))
    run_out(scheduler)
    submit(scheduler, Sequence(16, 1, hashes(1, 4)))
    assert chunks_of(step(scheduler)[0]) == [(12, 4)]


def test_a_request_in_the_same_step_already_hits_the_blocks_of_the_one_before_it() -> None:
    scheduler = make()
    submit(scheduler, Sequence(17, 1, hashes(1, 4)), Sequence(17, 1, hashes(1, 4)))
    assert chunks_of(step(scheduler)[0]) == [(0, 17), (16, 1)]


def test_what_was_generated_is_cached_too() -> None:
    scheduler = make()
    submit(scheduler, Sequence(8, 9, hashes(1, 4)))  # 16 tokens are in the cache when the 17th is sampled
    run_out(scheduler)
    submit(scheduler, Sequence(20, 1, hashes(1, 5)))
    assert chunks_of(step(scheduler)[0]) == [(16, 4)]


# -- KV pressure -----------------------------------------------------------------------------------------------------


def test_a_request_waits_until_its_whole_prompt_fits() -> None:
    scheduler = make(kv_blocks=8)
    first, second = Sequence(20, 4), Sequence(16, 4)
    submit(scheduler, first, second)
    batch, _ = step(scheduler)
    assert len(batch.chunks) == 1 and len(scheduler.waiting) == 1
    assert run_out(scheduler) == [first, second]
    assert scheduler.counters.preemptions == 0


def test_the_last_admitted_loses_its_blocks_and_comes_back_first() -> None:
    scheduler = make(kv_blocks=6, max_num_seqs=2)
    first, second, third = Sequence(8, 8), Sequence(8, 8), Sequence(4, 4)
    submit(scheduler, first, second, third)
    assert run_out(scheduler) == [first, second, third]
    assert (first.preemptions, second.preemptions, third.preemptions) == (0, 1, 0)
    assert scheduler.counters.generation_tokens == 20
    assert scheduler.counters.prompt_tokens == 20


def test_a_preempted_request_finds_its_blocks_in_the_cache_if_nobody_took_them() -> None:
    scheduler = make(kv_blocks=7)
    first, second = Sequence(8, 9, hashes(1, 4)), Sequence(8, 9, hashes(2, 4))
    submit(scheduler, first, second)
    recomputed = 0
    while (batch := scheduler.schedule()) is not None:
        recomputed += sum(chunk.tokens for chunk in batch.chunks if chunk.sequence.preemptions)
        scheduler.postprocess(batch)
    assert second.preemptions >= 1
    assert 0 < recomputed < second.prompt_tokens + second.output_tokens


def test_a_prompt_whose_blocks_were_taken_while_it_was_prefilled_starts_again() -> None:
    scheduler = make(kv_blocks=8, max_num_batched_tokens=8)
    decoding, prefilled = Sequence(4, 13), Sequence(20, 2)
    submit(scheduler, decoding)
    for _ in range(8):
        step(scheduler)
    submit(scheduler, prefilled)
    assert [chunks_of(step(scheduler)[0]) for _ in range(3)] == [[(0, 7)], [(7, 7)], []]
    assert (prefilled.preemptions, prefilled.state) == (1, SequenceState.WAITING)
    assert run_out(scheduler) == [decoding, prefilled]


def test_what_never_fits_is_refused_at_once() -> None:
    scheduler = make(kv_blocks=4)
    with pytest.raises(PoiseError, match="17 tokens do not fit in a KV cache of 16"):
        scheduler.submit(Sequence(10, 7))
    submit(scheduler, Sequence(10, 6))
    assert len(run_out(scheduler)) == 1


# -- limits and priority ---------------------------------------------------------------------------------------------


def test_the_queue_limit_counts_running_and_waiting() -> None:
    scheduler = make(max_num_seqs=1, max_num_queued_reqs=2)
    submit(scheduler, Sequence(4, 4))
    step(scheduler)
    submit(scheduler, Sequence(4, 4))
    refused = Sequence(4, 4)
    assert scheduler.submit(refused) is Rejection.REQUESTS
    assert (scheduler.counters.rejections["max_num_queued_reqs"], len(scheduler.waiting)) == (1, 1)
    run_out(scheduler)
    submit(scheduler, refused)
    assert run_out(scheduler) == [refused]


def test_the_token_limit_counts_prompts_until_their_prefill_has_ended() -> None:
    scheduler = make(max_num_queued_tokens=10)
    submit(scheduler, Sequence(8, 4))
    assert scheduler.submit(Sequence(3, 1)) is Rejection.TOKENS
    step(scheduler)
    submit(scheduler, Sequence(3, 1))


def test_priority_orders_the_queue_and_the_least_urgent_is_preempted() -> None:
    scheduler = make(max_num_seqs=1, priority=True)
    low, normal, high = Sequence(4, 2, priority=5), Sequence(4, 2), Sequence(4, 2, priority=-1)
    submit(scheduler, low, normal, high)
    assert run_out(scheduler) == [high, normal, low]
    scheduler = make(kv_blocks=6, priority=True)
    low, high = Sequence(8, 8, priority=5), Sequence(8, 8)
    submit(scheduler, low)
    step(scheduler)
    submit(scheduler, high)
    assert run_out(scheduler) == [high, low]
    assert (low.preemptions, high.preemptions) == (1, 0)


def test_without_priority_scheduling_priorities_are_ignored() -> None:
    scheduler = make(max_num_seqs=1)
    first, second = Sequence(4, 2, priority=9), Sequence(4, 2, priority=0)
    submit(scheduler, first, second)
    assert run_out(scheduler) == [first, second]


def test_a_sequence_needs_a_prompt_and_an_output() -> None:
    with pytest.raises(PoiseError, match="0 prompt and 1 output tokens"):
        Sequence(0, 1)
    with pytest.raises(PoiseError, match="1 prompt and 0 output tokens"):
        Sequence(1, 0)


# -- what always holds -----------------------------------------------------------------------------------------------


class Ledger:
    """Counts what every sequence got, the slow and certain way."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.tokens: dict[Sequence, int] = {}
        self.ends: dict[Sequence, int] = {}

    def check(self) -> None:
        scheduler, pool = self.scheduler, self.scheduler.cache.pool
        assert pool.used + pool.free == pool.total
        assert pool.used + pool.cached <= pool.total
        private = sum(sequence.private_blocks for sequence in scheduler.running)
        shared = {block for one in scheduler.running for block in one.block_hashes[: one.hashed_blocks]}
        assert pool.used == private + len(shared)
        assert len(scheduler.running) <= scheduler.limits.max_num_seqs
        for sequence in scheduler.decoding:
            held = (sequence.hashed_blocks + sequence.private_blocks) * scheduler.profile.block_size_tokens
            kv_tokens = sequence.prompt_tokens + scheduler.generated_tokens(sequence) - 1
            assert kv_tokens <= held
            assert scheduler.generated_tokens(sequence) == self.tokens[sequence]

    def step(self) -> bool:
        batch = self.scheduler.schedule()
        if batch is None:
            return False
        assert 0 < batch.tokens <= self.scheduler.limits.max_num_batched_tokens
        assert batch.decodes == len(self.scheduler.decoding)
        assert batch.context_tokens == sum(one.prompt_tokens + self.tokens[one] for one in self.scheduler.decoding)
        output = self.scheduler.postprocess(batch)
        for sequence in (*output.decoded, *output.started):
            self.tokens[sequence] = self.tokens.get(sequence, 0) + 1
        for sequence in output.finished:
            self.ends[sequence] = self.ends.get(sequence, 0) + 1
        self.check()
        return True


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40), st.integers(1, 20), st.integers(0, 4)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0), st.just(0)),
        st.tuples(st.just("abort in step"), st.integers(0, 30), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(
    actions=ACTIONS,
    kv_blocks=st.integers(15, 40),
    budget=st.integers(4, 32),
    seqs=st.integers(1, 4),
    priority=st.booleans(),
    planned_ahead=st.booleans(),
)
def test_every_request_ends_once_and_no_block_leaks(
    actions: list[tuple[str, int, int, int]],
    kv_blocks: int,
    budget: int,
    seqs: int,
    priority: bool,
    planned_ahead: bool,
) -> None:
    scheduler = make(
        kv_blocks,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        priority=priority,
        async_scheduling=planned_ahead,
    )
    ledger = Ledger(scheduler)
    everything: list[Sequence] = []
    for action, first, second, third in actions:
        if action == "submit":
            family_hashes = hashes(third, 15) if third else ()
            everything.append(Sequence(first, second, family_hashes, priority=third))
            submit(scheduler, everything[-1])
        elif action == "step":
            for _ in range(first):
                ledger.step()
        elif everything and action == "abort":
            scheduler.abort(everything[first % len(everything)])
            ledger.check()
        elif everything and (batch := scheduler.schedule()) is not None:
            scheduler.abort(everything[first % len(everything)])
            output = scheduler.postprocess(batch)
            for sequence in (*output.decoded, *output.started):
                ledger.tokens[sequence] = ledger.tokens.get(sequence, 0) + 1
            for sequence in output.finished:
                ledger.ends[sequence] = ledger.ends.get(sequence, 0) + 1
            ledger.check()
    for _ in range(5_000):
        if not ledger.step():
            break
    assert (len(scheduler.running), len(scheduler.waiting), scheduler.cache.pool.used) == (0, 0, 0)
    assert scheduler.prefilling_tokens == 0
    finished = [one for one in everything if one.state is SequenceState.FINISHED]
    aborted = [one for one in everything if one.state is SequenceState.ABORTED]
    assert len(finished) + len(aborted) == len(everything)
    assert all(ledger.tokens[one] == one.output_tokens and ledger.ends[one] == 1 for one in finished)
    assert all(one not in ledger.ends for one in aborted)
    assert scheduler.counters.ended.get("length", 0) == len(finished)
    assert scheduler.counters.ended.get("abort", 0) == len(aborted)
    assert scheduler.counters.generation_tokens == sum(ledger.tokens.values())


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(6)))
def test_the_order_of_arrival_changes_who_is_first_but_not_the_work(order: list[int]) -> None:
    shapes = [(30, 5), (4, 9), (17, 1), (8, 8), (25, 3), (12, 12)]
    scheduler = make(kv_blocks=12)
    sequences = [Sequence(*shapes[index], hashes(index, 8)) for index in order]
    submit(scheduler, *sequences)
    assert len(run_out(scheduler)) == 6
    assert scheduler.counters.prompt_tokens == 96
    assert scheduler.counters.generation_tokens == 38
