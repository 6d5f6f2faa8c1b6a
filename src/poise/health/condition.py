"""All that is judged of one replica's health, folded into its state. Pure: facts and the time are passed in."""

from typing import Final

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaState
from poise.health.breaker import Breaker, BreakerState, Sign
from poise.health.probes import Probe, ProbeHistory, Verdict
from poise.health.progress import Progress
from poise.health.settings import BreakerSettings, HealthSettings

_CLOSED: Final = BreakerState.CLOSED
DRAIN_BELIEVED_S = 60.0
"""How long an engine that said that it takes no new requests is believed without another sign. A drain ends with the
process, which is seen; this is for the one that said so by mistake."""


class Condition:
    """One replica's health. After each fact, what is plain to read below is up to date.

    - `state` is what operators are shown.
    - `out`: it surely cannot take a request now, so none is sent whatever becomes of it.
    - `doubted`: it may be ill; it gets no new request while a peer is `good`.
    - `good`: neither, and its breaker is closed.
    """

    __slots__ = (
        "asleep", "breaker", "doubted", "draining_since_s", "flowed_at_s", "good", "out", "probes",
        "progress", "progress_at_s", "seen", "state", "taken_out",
    )  # fmt: skip

    def __init__(self, breaker: BreakerSettings, health: HealthSettings) -> None:
        self.breaker = Breaker(breaker)
        self.probes = ProbeHistory(health)
        self.progress = Progress(health)
        self.progress_at_s: float | None = None
        """When it was last seen to produce output, for whomever."""
        self.flowed_at_s: float | None = None
        """When bytes of a stream last came, which may be comments."""
        self.asleep = False
        self.taken_out = False
        """Whether an operator has taken it out, for a while or for good."""
        self.draining_since_s: float | None = None
        """When the engine said that it takes no new requests; None if it has not."""
        self.seen = False
        """Whether the server ever answered."""
        self.state = ReplicaState.READY
        self.out = False
        self.doubted = False
        self.good = True

    def judge(self) -> None:
        """Fold the facts; to be called after each."""
        dead = self.probes.verdict == Verdict.DEAD
        if self.taken_out or (self.draining_since_s is not None and not dead):
            self.state = ReplicaState.DRAINING
        elif dead and not self.seen:
            self.state = ReplicaState.JOINING
        elif dead or self.probes.verdict == Verdict.FAILING or self.progress.stalled:
            self.state = ReplicaState.UNHEALTHY
        else:
            self.state = ReplicaState.ASLEEP if self.asleep else ReplicaState.READY
        self.doubted = self.state is ReplicaState.UNHEALTHY and not dead
        self.out = self.state is not ReplicaState.READY and not self.doubted
        self.good = self.state is ReplicaState.READY and self.breaker.state is _CLOSED

    # -- facts

    def worked(self, now_s: float) -> None:
        """It was seen to produce output."""
        self.progress_at_s = self.flowed_at_s = now_s
        self.seen = True

    def ended(self, trial: int, sign: int, now_s: float) -> None:
        """A request sent there has ended."""
        if sign == Sign.DRAINS and self.draining_since_s is None:
            self.draining_since_s = now_s
        elif sign == Sign.UNREACHABLE and self.probes.answered:
            self.probes.note(Probe.REFUSED, now_s, None)
        self.breaker.ended(trial, sign, now_s)

    def probed(self, probe: int, now_s: float) -> None:
        """A probe of its server has ended."""
        was_well = self.probes.verdict == Verdict.WELL
        self.probes.note(probe, now_s, self.flowed_at_s)
        if probe == Probe.WELL:
            self.seen = True
            if not was_well:
                self._began_anew(now_s)

    def read(self, reading: LoadReading, now_s: float, *, restarted: bool) -> None:
        """Its metrics page said `reading`; `restarted` if its counters have begun anew."""
        self.seen = True
        if reading.asleep is not None:
            self.asleep = reading.asleep
        if restarted:
            self._began_anew(now_s)
        self.progress.note(reading, now_s, self.progress_at_s)

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        self.breaker.advance(now_s)
        since_s = self.draining_since_s
        if since_s is not None and now_s - since_s >= DRAIN_BELIEVED_S:
            self.draining_since_s = None

    def _began_anew(self, now_s: float) -> None:
        self.draining_since_s = None
        self.breaker.recovered(now_s)
