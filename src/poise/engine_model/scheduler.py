"""Continuous batching as vLLM v1 does it: who computes how many tokens in the next step.

Three words hold the model together: `schedule` makes a batch, somebody lets its time pass, `postprocess` writes back.

Every decoding sequence gets exactly one token a step (running sequences come first and `max_num_seqs` never exceeds
the token budget), so where it is follows from the step number. The scheduler therefore touches a decoding sequence only
in the steps where it needs a block or ends, which two calendars keyed by step number name.
"""

from collections import defaultdict
from enum import StrEnum

from poise.core.errors import PoiseError
from poise.engine_model.batch import Batch, Chunk, StepOutput
from poise.engine_model.counters import Counters
from poise.engine_model.kv_cache import KvCache
from poise.engine_model.profile import EngineProfile
from poise.engine_model.sequence import Sequence, SequenceState
from poise.engine_model.waiting_queue import WaitingQueue


class Rejection(StrEnum):
    """Which queue limit refused a request."""

    REQUESTS = "max_num_queued_reqs"
    TOKENS = "max_num_queued_tokens"


class Scheduler:
    """The queue, the running sequences and their blocks. Knows no time but the number of the step."""

    def __init__(self, profile: EngineProfile, counters: Counters) -> None:
        self.profile = profile
        self.limits = profile.limits
        self.cache = KvCache(profile.kv_blocks, profile.block_size_tokens)
        self.counters = counters
        self.step = 0
        """Number of the last planned step."""
        self.finished_step = 0
        self.running: dict[Sequence, None] = {}
        """In the order of admission."""
        self.decoding: dict[Sequence, None] = {}
        self.waiting = WaitingQueue()
        """Preempted sequences included."""
        self.prefilling_tokens = 0
        """Prompt tokens of all sequences whose prefill has not ended."""
        self._context_tokens = 0
        """Sum over decoding sequences of their tokens in the KV cache after step `_context_step`."""
        self._context_step = 0
        self._arrivals = 0
        self._block_calendar: defaultdict[int, list[Sequence]] = defaultdict(list)
        self._end_calendar: defaultdict[int, list[Sequence]] = defaultdict(list)

    def generated_tokens(self, sequence: Sequence) -> int:
        """Output tokens that `sequence` has so far."""
        if sequence.state is SequenceState.DECODE:
            return self._kv_tokens(sequence) - sequence.prompt_tokens + 1
        return sequence.generated_tokens

    def submit(self, sequence: Sequence) -> Rejection | None:
        """Queue `sequence` unless a queue limit is reached. Raises `PoiseError` if it could never fit."""
        if sequence.total_tokens > self.profile.kv_capacity_tokens:
            raise PoiseError(
                f"{sequence.total_tokens} tokens do not fit in a KV cache of {self.profile.kv_capacity_tokens}",
                hint="shorten the prompt or max_tokens, or choose a profile with more kv_blocks",
            )
        rejection = self._rejection(sequence)
        if rejection is not None:
            self.counters.rejections[rejection] += 1
            return rejection
        self._arrivals += 1
        sequence.order = (sequence.priority if self.limits.priority else 0, self._arrivals)
        planned_ahead = self.step > self.finished_step and self.limits.async_scheduling
        sequence.visible_step = self.step + (2 if planned_ahead else 1)
        self.prefilling_tokens += sequence.prompt_tokens
        self.waiting.push(sequence)
        return None

    def abort(self, sequence: Sequence) -> None:
        """End `sequence` now, wherever it is, and free what it holds. Does nothing if it has ended."""
        if sequence.ended or sequence.state is SequenceState.NEW:
            return
        if sequence.state is SequenceState.WAITING:
            self.waiting.forget()
        else:
            self._stop_running(sequence)
        self._leave(sequence, SequenceState.ABORTED)

    def schedule(self) -> Batch | None:
        """Plan the next step, or None if there is nothing to compute."""
        while self.running or self.waiting:
            self.step += 1
            chunks: list[Chunk] = []
            preempted = self._give_blocks_to_decodes()
            self._context_tokens += len(self.decoding)
            self._context_step = self.step
            budget = self.limits.max_num_batched_tokens - len(self.decoding)
            budget, preempted = self._continue_prefill(chunks, budget, preempted)
            if not preempted:
                self._admit(chunks, budget)
            if chunks or self.decoding:
                return Batch(self.step, chunks, len(self.decoding), self._context_tokens)
            # An empty step: all were preempted, or what waits becomes visible one step later.
            self.finished_step = self.step
            self._end_calendar.pop(self.step, None)
        return None

    def postprocess(self, batch: Batch) -> StepOutput:
        """Write back what `batch` computed: one token for each decode and each finished prefill."""
        self.finished_step = batch.step
        decoded = list(self.decoding)
        finished = self._finish_due(batch.step)
        started = [chunk.sequence for chunk in batch.chunks if self._prefill_done(chunk.sequence)]
        for sequence in started:
            if self._start_decoding(sequence, batch.step):
                finished.append(sequence)
        self.counters.generation_tokens += len(decoded) + len(started)
        return StepOutput(decoded, started, finished)

    # -- limits and queue -------------------------------------------------------------------------------------------

    def _rejection(self, sequence: Sequence) -> Rejection | None:
        most_requests, most_tokens = self.limits.max_num_queued_reqs, self.limits.max_num_queued_tokens
        if most_requests is not None and len(self.running) + len(self.waiting) >= most_requests:
            return Rejection.REQUESTS
        if most_tokens is not None and self.prefilling_tokens + sequence.prompt_tokens > most_tokens:
            return Rejection.TOKENS
        return None

    def _admit(self, chunks: list[Chunk], budget: int) -> None:
        while budget > 0 and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting.head()
            if sequence is None or sequence.visible_step > self.step or not self.cache.fits(sequence):
                return
            self.waiting.pop()
            chunks.append(self._start_prefill(sequence, budget))
            budget -= chunks[-1].tokens

    # -- prefill ----------------------------------------------------------------------------------------------------

    def _start_prefill(self, sequence: Sequence, budget: int) -> Chunk:
        self.cache.start(sequence)
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed_tokens
            self.counters.prefix_queries_tokens += sequence.prompt_tokens
            self.counters.prefix_hits_tokens += sequence.cached_tokens
        sequence.state = SequenceState.PREFILL
        self.running[sequence] = None
        tokens = min(budget, sequence.target_tokens - sequence.computed_tokens)
        self.cache.grow(sequence, sequence.computed_tokens + tokens)
        return self._chunk(sequence, tokens)

    def _continue_prefill(self, chunks: list[Chunk], budget: int, preempted: bool) -> tuple[int, bool]:
        """The next chunk of the one prefill that may be half done: that of the sequence admitted last."""
        sequence = next(reversed(self.running), None)
        if sequence is None or sequence.state is not SequenceState.PREFILL:
            return budget, preempted
        tokens = min(budget, sequence.target_tokens - sequence.computed_tokens)
        while not self.cache.grow(sequence, sequence.computed_tokens + tokens):
            preempted = True
            if self._preempt_last() is sequence:
                return budget, preempted
        chunks.append(self._chunk(sequence, tokens))
        return budget - tokens, preempted

    @staticmethod
    def _chunk(sequence: Sequence, tokens: int) -> Chunk:
        chunk = Chunk(sequence, sequence.computed_tokens, tokens)
        sequence.computed_tokens += tokens
        return chunk

    @staticmethod
    def _prefill_done(sequence: Sequence) -> bool:
        return sequence.state is SequenceState.PREFILL and sequence.computed_tokens == sequence.target_tokens

    # -- decode -----------------------------------------------------------------------------------------------------

    def _kv_tokens(self, sequence: Sequence) -> int:
        """Tokens of a decoding sequence in the KV cache after the last finished step."""
        return self.finished_step - sequence.offset

    def _start_decoding(self, sequence: Sequence, step: int) -> bool:
        """Count the first token after a prefill; True if it was also the last."""
        if not sequence.generated_tokens:
            self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.cached_tokens += sequence.cached_tokens
            self.prefilling_tokens -= sequence.prompt_tokens
        sequence.generated_tokens += 1
        if sequence.generated_tokens == sequence.output_tokens:
            self._stop_running(sequence)
            self._leave(sequence, SequenceState.FINISHED)
            return True
        sequence.state = SequenceState.DECODE
        sequence.offset = step - sequence.target_tokens
        self.decoding[sequence] = None
        self._context_tokens += sequence.target_tokens
        sequence.end_step = sequence.offset + sequence.total_tokens - 1
        self._end_calendar[sequence.end_step].append(sequence)
        self._note_next_block(sequence)
        return False

    def _finish_due(self, step: int) -> list[Sequence]:
        due = [s for s in self._end_calendar.pop(step, ()) if s.end_step == step and s.state is SequenceState.DECODE]
        for sequence in due:
            self._stop_running(sequence)
            self._leave(sequence, SequenceState.FINISHED)
        return due

    def _note_next_block(self, sequence: Sequence) -> None:
        sequence.block_step = sequence.offset + self.cache.held_tokens(sequence) + 1
        if sequence.block_step <= sequence.end_step:
            self._block_calendar[sequence.block_step].append(sequence)

    def _give_blocks_to_decodes(self) -> bool:
        """A block for each decode that fills its last one in this step; True if somebody was preempted for it."""
        step = self.step
        due = [
            s for s in self._block_calendar.pop(step, ()) if s.block_step == step and s.state is SequenceState.DECODE
        ]
        if len(due) > 1:
            due.sort(key=_by_order)
        preempted = False
        for sequence in due:
            while sequence.state is SequenceState.DECODE:
                if self.cache.grow(sequence, step - sequence.offset):
                    self._note_next_block(sequence)
                    break
                self._preempt_last()
                preempted = True
        return preempted

    # -- ends and preemption ----------------------------------------------------------------------------------------

    def _preempt_last(self) -> Sequence:
        """Take the blocks of the running sequence that is last in order, and queue it again in front."""
        victim = max(self.running, key=_by_order)
        self._stop_running(victim)
        self.cache.release(victim)
        victim.preemptions += 1
        victim.computed_tokens = 0
        victim.target_tokens = victim.prompt_tokens + victim.generated_tokens
        victim.visible_step = 0
        self.counters.preemptions += 1
        self.waiting.push(victim)
        return victim

    def _stop_running(self, sequence: Sequence) -> None:
        del self.running[sequence]
        if sequence.state is SequenceState.DECODE:
            sequence.generated_tokens = self.generated_tokens(sequence)
            # Takes nothing: if the last block is full, it becomes shareable.
            self.cache.grow(sequence, self._kv_tokens(sequence))
            self._context_tokens -= self._context_step - sequence.offset
            del self.decoding[sequence]

    def _leave(self, sequence: Sequence, state: SequenceState) -> None:
        if not sequence.generated_tokens:
            self.prefilling_tokens -= sequence.prompt_tokens
        self.cache.release(sequence)
        sequence.state = state
        reason = "abort" if state is SequenceState.ABORTED else sequence.finish_reason
        self.counters.ended[reason] = self.counters.ended.get(reason, 0) + 1


def _by_order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
