"""Lets one engine model run in real time: begins a step, waits as long as it takes, hands out what it gave."""

import asyncio
from typing import Protocol

from poise.core.clock import monotonic_s
from poise.engine.histograms import EngineHistograms
from poise.engine_model.engine import Engine
from poise.engine_model.profile import EngineProfile
from poise.engine_model.scheduler import Rejection
from poise.engine_model.sequence import Sequence, SequenceState

LATE_RATIO = 0.2
LATE_FLOOR_S = 0.002
"""A step is late if it ended this much, or `LATE_RATIO` of its own time, behind the plan: a millisecond of that is the
event loop's timer resolution."""


class TokenSink(Protocol):
    """Who gets the tokens of a sequence: its `owner`."""

    def token(self) -> None:
        """One more token, not the last."""

    def last_token(self) -> None:
        """The last token."""


class EngineDriver:
    """One engine, `speed` times faster than its profile. All times it gives the engine are clock seconds."""

    def __init__(self, profile: EngineProfile, speed: float) -> None:
        self.engine = Engine(profile)
        self.histograms = EngineHistograms()
        self.late_steps = 0
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._deadline_s = 0.0
        self._duration_s = 0.0

    @property
    def load(self) -> int:
        """Requests running and waiting."""
        return self.engine.running + self.engine.waiting

    def submit(self, sequence: Sequence) -> Rejection | None:
        """Queue a sequence whose `owner` is a `TokenSink`. A rejection means that nothing was changed."""
        rejection = self.engine.submit(sequence, monotonic_s())
        if rejection is None and self._timer is None:
            self._timer = self._loop.call_soon(self._begin_now)
        return rejection

    def abort(self, sequence: Sequence) -> None:
        """End a sequence whose caller has gone, at once."""
        self.engine.abort(sequence, monotonic_s())

    def close(self) -> None:
        """Stop stepping."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin_now(self) -> None:
        self._begin(monotonic_s())

    def _begin(self, start_s: float) -> None:
        duration_s = self.engine.begin_step(start_s)
        if duration_s is None:
            self._timer = None
            return
        self._duration_s = duration_s / self._speed
        self._deadline_s = start_s + self._duration_s
        self._timer = self._loop.call_later(max(0.0, self._deadline_s - monotonic_s()), self._end)

    def _end(self) -> None:
        behind_s = monotonic_s() - self._deadline_s
        if behind_s > max(LATE_FLOOR_S, LATE_RATIO * self._duration_s):
            self.late_steps += 1
        tokens = self.engine.step_tokens
        output = self.engine.end_step(self._deadline_s)
        for sequences in (output.decoded, output.started):
            for sequence in sequences:
                sink: TokenSink = sequence.owner  # type: ignore[assignment]  # set by whoever submitted it
                if sequence.state is SequenceState.FINISHED:
                    sink.last_token()
                else:
                    sink.token()
        self.histograms.step(output, tokens, self._duration_s)
        # The next step follows the plan, so that a little lateness does not add up; a lot is not caught up in a burst.
        self._begin(self._deadline_s if behind_s < self._duration_s else monotonic_s())
