"""The breaker: total over states and events, and the same as a plain model of it through any order of requests."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poise.health.breaker import TRANSITIONS, Breaker, BreakerEvent, BreakerState, Sign
from poise.health.settings import BreakerSettings

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
FAILURES, WINDOW_S, OPEN_S = 3, 10.0, 4.0
SETTINGS = BreakerSettings(failures=FAILURES, window_s=WINDOW_S, open_s=OPEN_S)
NO_FAULT = (BreakerEvent.SUCCESS, BreakerEvent.NEUTRAL, BreakerEvent.TRIAL_SENT, BreakerEvent.TRIAL_ABANDONED)
ENDS = (Sign.NOTHING, Sign.WELL, Sign.FAILED, Sign.UNREACHABLE, Sign.DRAINS)


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == {(state, event) for state in BreakerState for event in BreakerEvent}


def test_whatever_is_nobodys_failure_moves_nothing() -> None:
    assert all(TRANSITIONS[state, event] is state for state in BreakerState for event in NO_FAULT)


def test_each_state_can_be_left_and_entered() -> None:
    moves = {(state, after) for (state, _), after in TRANSITIONS.items() if after is not state}
    assert moves == {(CLOSED, OPEN), (OPEN, HALF_OPEN), (OPEN, CLOSED), (HALF_OPEN, CLOSED), (HALF_OPEN, OPEN)}


@given(st.lists(st.sampled_from([Sign.NOTHING, Sign.WELL]), max_size=60), st.integers(0, FAILURES - 1))
def test_callers_cannot_open_it_however_many_they_are(signs: list[int], failures: int) -> None:
    breaker = Breaker(SETTINGS)
    for sign in [Sign.FAILED] * failures + signs:
        breaker.ended(breaker.sent(0.0), sign, 0.0)
    assert (breaker.state, breaker.admits) == (CLOSED, True)


@pytest.mark.parametrize("before", [0, 1, 1000])
def test_one_that_fails_for_good_opens_at_once_however_much_it_did_before(before: int) -> None:
    breaker = Breaker(SETTINGS)
    for sign in [Sign.WELL] * before + [Sign.FAILED] * (FAILURES - 1):
        breaker.ended(0, sign, 0.0)
    assert breaker.state is CLOSED
    breaker.ended(0, Sign.FAILED, 0.0)
    assert breaker.state is OPEN


@dataclass
class Sent:
    """One request as the model sees it."""

    trial: int
    era: int
    on_trial: bool


@dataclass
class Model:
    """The rules in plain words: a list of failure times, and a state."""

    state: BreakerState = CLOSED
    failures_s: list[float] = field(default_factory=list)
    era: int = 0
    opened_at_s: float = 0.0

    def open(self, now_s: float) -> None:
        self.state, self.failures_s, self.opened_at_s = OPEN, [], now_s
        self.era += 1

    def fail(self, now_s: float) -> None:
        self.failures_s = [at for at in self.failures_s if now_s - at < WINDOW_S] + [now_s]
        if len(self.failures_s) == FAILURES:
            self.open(now_s)

    def become(self, state: BreakerState) -> None:
        self.state, self.failures_s = state, []


class BreakerMachine(RuleBasedStateMachine):
    """Every rule does the same to the breaker and to the model."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(SETTINGS)
        self.model = Model()
        self.open: list[Sent] = []
        self.now_s = 100.0

    def of_now(self, sent: Sent) -> bool:
        return sent.on_trial and sent.era == self.model.era and self.model.state is not CLOSED

    @rule()
    def send(self) -> None:
        on_trial = self.model.state is not CLOSED
        self.open.append(Sent(self.breaker.sent(self.now_s), self.model.era, on_trial))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def output(self, data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(self.open))
        if sent.trial:
            self.breaker.output(sent.trial, self.now_s)
        if self.of_now(sent):
            self.model.become(CLOSED)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), sign=st.sampled_from(ENDS))
    def end(self, data: st.DataObject, sign: int) -> None:
        sent = data.draw(st.sampled_from(self.open))
        self.open.remove(sent)
        self.breaker.ended(sent.trial, sign, self.now_s)
        model = self.model
        if self.of_now(sent):
            if sign == Sign.WELL:
                model.become(CLOSED)
            elif sign != Sign.NOTHING and model.state is HALF_OPEN:
                model.open(self.now_s)
        elif sign == Sign.WELL:
            model.failures_s = model.failures_s[1:]
        elif sign in (Sign.UNREACHABLE, Sign.DRAINS) and model.state is not OPEN:
            model.open(self.now_s)
        elif sign == Sign.FAILED and model.state is CLOSED:
            model.fail(self.now_s)

    @rule(seconds=st.floats(0, 6))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.breaker.advance(self.now_s)
        if self.model.state is OPEN and self.now_s - self.model.opened_at_s >= OPEN_S:
            self.model.become(HALF_OPEN)

    @rule()
    def recovered(self) -> None:
        self.breaker.recovered(self.now_s)
        self.model.become(HALF_OPEN if self.model.state is OPEN else self.model.state)

    @invariant()
    def they_agree(self) -> None:
        assert self.breaker.state is self.model.state
        under_way = any(self.of_now(sent) for sent in self.open)
        assert self.breaker.admits is (self.model.state is CLOSED or (self.model.state is HALF_OPEN and not under_way))

    @invariant()
    def openings_are_counted(self) -> None:
        assert self.breaker.moves[OPEN] == self.model.era


TestBreaker = BreakerMachine.TestCase
TestBreaker.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
