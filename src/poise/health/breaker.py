"""A replica's circuit breaker: failed requests open it, a trial closes it again. Pure: the time is passed in."""

from collections import deque
from enum import StrEnum
from typing import Final

from poise.health.settings import BreakerSettings


class Sign:
    """What the end of one attempt says of its replica. Plain numbers: they are compared for every request."""

    NOTHING: Final = 0
    """The caller's error, its hang-up, a refusal of an engine that is full: the replica may be as well as ever."""
    WELL: Final = 1
    FAILED: Final = 2
    SILENT: Final = 3
    """Nothing came in time: a failure of a replica that made no progress meanwhile."""
    UNREACHABLE: Final = 4
    DRAINS: Final = 5
    """The engine has said that it takes no new requests."""


class BreakerState(StrEnum):
    """Whether requests are sent to the replica."""

    CLOSED = "closed"
    OPEN = "open"
    """No request is sent but where no replica is better."""
    HALF_OPEN = "half_open"
    """One request at a time is sent on trial."""


class BreakerEvent(StrEnum):
    """What can happen to a breaker. A trial is a request that was sent while it was not closed."""

    SUCCESS = "a request succeeds"
    FAILURE = "a request fails"
    LIMIT = "one failure too many, or nothing listens"
    NEUTRAL = "a caller errs or leaves"
    OPEN_TIME_OVER = "open_s is over"
    TRIAL_SENT = "a trial is sent"
    TRIAL_SUCCEEDED = "a trial gets output"
    TRIAL_FAILED = "a trial fails"
    TRIAL_ABANDONED = "a trial's caller errs or leaves"
    RECOVERED = "a failed probe succeeds, or the engine restarts"


_CLOSED: Final = BreakerState.CLOSED
_OPEN: Final = BreakerState.OPEN
_HALF_OPEN: Final = BreakerState.HALF_OPEN

TRANSITIONS: Final[dict[tuple[BreakerState, BreakerEvent], BreakerState]] = {
    (_CLOSED, BreakerEvent.SUCCESS): _CLOSED,
    (_CLOSED, BreakerEvent.FAILURE): _CLOSED,
    (_CLOSED, BreakerEvent.LIMIT): _OPEN,
    (_CLOSED, BreakerEvent.NEUTRAL): _CLOSED,
    (_CLOSED, BreakerEvent.OPEN_TIME_OVER): _CLOSED,
    (_CLOSED, BreakerEvent.TRIAL_SENT): _CLOSED,
    (_CLOSED, BreakerEvent.TRIAL_SUCCEEDED): _CLOSED,
    (_CLOSED, BreakerEvent.TRIAL_FAILED): _CLOSED,
    (_CLOSED, BreakerEvent.TRIAL_ABANDONED): _CLOSED,
    (_CLOSED, BreakerEvent.RECOVERED): _CLOSED,
    (_OPEN, BreakerEvent.SUCCESS): _OPEN,
    (_OPEN, BreakerEvent.FAILURE): _OPEN,
    (_OPEN, BreakerEvent.LIMIT): _OPEN,
    (_OPEN, BreakerEvent.NEUTRAL): _OPEN,
    (_OPEN, BreakerEvent.OPEN_TIME_OVER): _HALF_OPEN,
    (_OPEN, BreakerEvent.TRIAL_SENT): _OPEN,
    (_OPEN, BreakerEvent.TRIAL_SUCCEEDED): _CLOSED,
    (_OPEN, BreakerEvent.TRIAL_FAILED): _OPEN,
    (_OPEN, BreakerEvent.TRIAL_ABANDONED): _OPEN,
    (_OPEN, BreakerEvent.RECOVERED): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.SUCCESS): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.FAILURE): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.LIMIT): _OPEN,
    (_HALF_OPEN, BreakerEvent.NEUTRAL): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.OPEN_TIME_OVER): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.TRIAL_SENT): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.TRIAL_SUCCEEDED): _CLOSED,
    (_HALF_OPEN, BreakerEvent.TRIAL_FAILED): _OPEN,
    (_HALF_OPEN, BreakerEvent.TRIAL_ABANDONED): _HALF_OPEN,
    (_HALF_OPEN, BreakerEvent.RECOVERED): _HALF_OPEN,
}


class Breaker:
    """One replica's breaker: what its requests say, weighed and put through `TRANSITIONS`.

    A failure counts one for `window_s`, and a success takes one back: a replica that fails for good opens at its
    `failures`th failure however much it did before, one that fails now and then does not.
    """

    __slots__ = ("_failures_s", "_opened_at_s", "_settings", "_trials", "admits", "era", "moves", "state")

    def __init__(self, settings: BreakerSettings) -> None:
        self.state = _CLOSED
        self.admits = True
        """Whether a request may be sent by this breaker's leave. A request that is sent without it is a trial too."""
        self.era = 0
        """How often the breaker has opened: which trials are of now."""
        self.moves: dict[BreakerState, int] = dict.fromkeys(BreakerState, 0)
        """How often each state was entered."""
        self._settings = settings
        self._failures_s: deque[float] = deque()
        self._opened_at_s = 0.0
        self._trials = 0

    def sent(self, now_s: float) -> int:
        """A request is sent. Returns what `output` and `ended` want to know of it: its era if a trial, else 0."""
        if self.state is _CLOSED:
            return 0
        self._trials += 1
        self._move(BreakerEvent.TRIAL_SENT, now_s)
        return self.era

    def output(self, trial: int, now_s: float) -> None:
        """A request got its first output."""
        if trial and trial == self.era:
            self._move(BreakerEvent.TRIAL_SUCCEEDED, now_s)

    def ended(self, trial: int, sign: int, now_s: float) -> None:
        """A request has ended; it is one of the signs but `SILENT`, which is to be settled before."""
        if trial and trial == self.era:
            self._trials -= 1
            if self.state is not _CLOSED:
                self._trial_ended(sign, now_s)
                return
        if sign == Sign.WELL:
            if self._failures_s:
                self._failures_s.popleft()
            if self.state is not _CLOSED:
                self._move(BreakerEvent.SUCCESS, now_s)
        elif sign == Sign.NOTHING:
            self._move(BreakerEvent.NEUTRAL, now_s)
        elif sign in (Sign.UNREACHABLE, Sign.DRAINS):
            self._move(BreakerEvent.LIMIT, now_s)
        else:
            self._failed(now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        if self.state is _OPEN and now_s - self._opened_at_s >= self._settings.open_s:
            self._move(BreakerEvent.OPEN_TIME_OVER, now_s)

    def recovered(self, now_s: float) -> None:
        """There is reason to believe that the replica is well again: what it did before says nothing any more."""
        self._failures_s.clear()
        self._move(BreakerEvent.RECOVERED, now_s)

    def _trial_ended(self, sign: int, now_s: float) -> None:
        if sign == Sign.WELL:
            self._move(BreakerEvent.TRIAL_SUCCEEDED, now_s)
        elif sign == Sign.NOTHING:
            self._move(BreakerEvent.TRIAL_ABANDONED, now_s)
        else:
            self._move(BreakerEvent.TRIAL_FAILED, now_s)

    def _failed(self, now_s: float) -> None:
        failures_s = self._failures_s
        if self.state is _CLOSED:
            while failures_s and now_s - failures_s[0] >= self._settings.window_s:
                failures_s.popleft()
            failures_s.append(now_s)
        self._move(BreakerEvent.LIMIT if len(failures_s) >= self._settings.failures else BreakerEvent.FAILURE, now_s)

    def _move(self, event: BreakerEvent, now_s: float) -> None:
        state = TRANSITIONS[self.state, event]
        if state is not self.state:
            self.state = state
            self.moves[state] += 1
            self._failures_s.clear()
            if state is _OPEN:
                self._opened_at_s = now_s
                self.era += 1
                self._trials = 0
        self.admits = state is _CLOSED or (state is _HALF_OPEN and not self._trials)
