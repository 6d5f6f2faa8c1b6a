"""One engine: the scheduler with the step times of its profile.

Driven by `poise.engine` in real time and by a discrete-event simulator in virtual time, in the same three calls:
`begin_step` says how long the step takes, the driver lets that time pass, `end_step` says what it gave.
"""

from poise.core.errors import PoiseError
from poise.engine_model.batch import Batch, StepOutput
from poise.engine_model.counters import Counters
from poise.engine_model.profile import EngineProfile
from poise.engine_model.scheduler import Rejection, Scheduler
from poise.engine_model.sequence import Sequence


class Engine:
    """A model of one vLLM engine. Reads no clock: every call that needs the time is given it in seconds."""

    def __init__(self, profile: EngineProfile) -> None:
        self.profile = profile
        self.counters = Counters()
        self.scheduler = Scheduler(profile, self.counters)
        self._batch: Batch | None = None

    @property
    def stepping(self) -> bool:
        """Whether a step was begun and not ended."""
        return self._batch is not None

    @property
    def step_tokens(self) -> int:
        """Tokens that the step in progress computes, 0 if there is none."""
        return self._batch.tokens if self._batch else 0

    @property
    def running(self) -> int:
        """Sequences that hold blocks and are computed."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self.scheduler.waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """Blocks referenced by running sequences over all blocks, 0 to 1."""
        return self.scheduler.cache.pool.usage_ratio

    def submit(self, sequence: Sequence, now_s: float) -> Rejection | None:
        """Queue `sequence`; a rejection means that a queue limit is reached and nothing was changed.

        Raises `PoiseError` if the sequence could never fit in the KV cache.
        """
        sequence.arrived_s = now_s
        return self.scheduler.submit(sequence)

    def abort(self, sequence: Sequence, now_s: float) -> None:
        """End `sequence` at once, in whatever state it is, and free what it holds."""
        if not sequence.ended:
            sequence.ended_s = now_s
            self.scheduler.abort(sequence)

    def begin_step(self, now_s: float) -> float | None:
        """Plan a step and return its duration in seconds, or None if there is nothing to do."""
        if self._batch is not None:
            raise PoiseError("a step was begun before the last one ended", hint="call end_step first")
        batch = self.scheduler.schedule()
        if batch is None:
            return None
        self._batch = batch
        for chunk in batch.chunks:
            if chunk.sequence.admitted_s is None:
                chunk.sequence.admitted_s = now_s
        requests = batch.decodes + len(batch.chunks)
        return self.profile.step.duration_s(batch.tokens, batch.attention_pairs, batch.context_tokens, requests)

    def end_step(self, now_s: float) -> StepOutput:
        """Finish the step that was begun: who got a token, and who ended with it."""
        batch, self._batch = self._batch, None
        if batch is None:
            raise PoiseError("a step was ended that was not begun", hint="call begin_step first")
        output = self.scheduler.postprocess(batch)
        self.counters.steps += 1
        for sequence in output.started:
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
        for sequence in output.finished:
            sequence.ended_s = now_s
        return output
