"""`Retry-After` against the time it really takes until somebody in that place goes on, in virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.admission.drain_rate import MAX_RETRY_AFTER_S, DrainRate, retry_after_s
from poise.admission.queue import CentralQueue, Entry
from poise.core.errors import Refusal

Rate = Callable[[float], float]
"""Something per second, or seconds of something, at a time."""
TICK_S = 0.01


@dataclass(eq=False)
class Caller:
    """One request. `follows` are the refused ones that would have stood right behind it."""

    cluster: "Cluster"
    follows: list["Estimate"] = field(default_factory=list)

    def take_turn(self) -> bool:
        return self.cluster.take(self)

    def turn_away(self, refusal: Refusal) -> None:
        raise AssertionError


@dataclass
class Estimate:
    """What somebody was told at `at_s`, and when the one before it in the queue went on."""

    at_s: float
    told_s: int
    ahead: int
    admitted_s: float | None = None


class Cluster:
    """`slots` requests at once behind a queue, `service_s` each; mean service time as the fleet learns it."""

    def __init__(self, slots: int, limit: int, service_s: Rate, seed: int, *, in_step: bool = False) -> None:
        self.slots, self.service_s, self.random, self.in_step = slots, service_s, Random(seed), in_step
        self.queue = CentralQueue(limit)
        self.now_s = 0.0
        self.running: list[tuple[float, float]] = []
        self.mean_s: float | None = None
        self.last: Caller | None = None
        self.estimates: list[Estimate] = []

    def take(self, caller: Caller) -> bool:
        if len(self.running) >= self.slots:
            return False
        mean = self.service_s(self.now_s)
        took_s = mean if self.in_step else mean * self.random.uniform(0.3, 1.7)
        heappush(self.running, (self.now_s + took_s, took_s))
        for estimate in caller.follows:
            estimate.admitted_s = self.now_s
        return True

    def arrive(self) -> None:
        caller = Caller(self)
        if self.queue.length == 0 and self.take(caller):
            return
        entry = Entry(caller, model="m", priority=0, key=None, tokens=100)
        if self.queue.put(entry, self.now_s) is entry:
            assert self.last is not None
            line, ahead = self.queue.line("m"), self.queue.ahead("m", 0, None)
            assert line is not None
            expected = len(self.running) / self.mean_s if self.mean_s else None
            told_s = retry_after_s(ahead, line.admissions.per_s(self.now_s, expected))
            estimate = Estimate(self.now_s, told_s, ahead)
            self.last.follows.append(estimate)
            self.estimates.append(estimate)
        else:
            self.last = caller

    def run(self, arrivals_per_s: Rate, until_s: float) -> list[Estimate]:
        """All that was told; those whose turn never came are not judged."""
        while self.now_s < until_s or self.queue.length:
            self.now_s += TICK_S
            while self.running and self.running[0][0] <= self.now_s:
                _, took_s = heappop(self.running)
                self.mean_s = took_s if self.mean_s is None else self.mean_s + 0.1 / 4 * (took_s - self.mean_s)
            self.queue.let_through(self.now_s)
            expected = arrivals_per_s(self.now_s) * TICK_S if self.now_s < until_s else 0.0
            for _ in range(int(expected) + (self.random.random() < expected % 1)):
                self.arrive()
        return self.estimates


def errors(estimates: list[Estimate]) -> list[float]:
    """How far each was off, as a share of the real time; the rounding up to whole seconds is no error."""
    off = []
    for one in estimates:
        assert one.admitted_s is not None
        real_s = one.admitted_s - one.at_s
        off.append(max(abs(one.told_s - 0.5 - real_s) - 0.5, 0.0) / max(real_s, 1.0))
    return off


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("service_s", [0.5, 3.0, 12.0])
def test_steady_overload(service_s: float, seed: int) -> None:
    cluster = Cluster(32, 200, lambda now_s: service_s, seed)
    off = errors(cluster.run(lambda now_s: 2 * 32 / service_s, 40 * service_s))
    assert len(off) > 500
    assert max(off) < 0.5
    assert median(off) < 0.15


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_after_quiet_times_and_quiet_again(seed: int) -> None:
    cluster = Cluster(32, 200, lambda now_s: 4.0, seed)
    estimates = cluster.run(lambda now_s: 400.0 if 60.0 < now_s < 61.5 else 2.0, 100.0)
    off = errors(estimates)
    assert len(off) > 200
    assert max(off) < 0.5
    assert all(one.at_s < 70 for one in estimates), "nobody is refused in quiet times"


@pytest.mark.parametrize("seed", range(3))
def test_replicas_that_become_slower_and_slower(seed: int) -> None:
    cluster = Cluster(32, 100, lambda now_s: 2.0 + now_s / 60, seed)
    off = errors(cluster.run(lambda now_s: 40.0, 300.0))
    assert len(off) > 500
    assert max(off) < 0.5
    assert median(off) < 0.2


def test_requests_that_end_in_step() -> None:
    cluster = Cluster(32, 200, lambda now_s: 5.0, 0, in_step=True)
    off = errors(cluster.run(lambda now_s: 30.0, 150.0))
    assert len(off) > 500
    assert sorted(off)[int(len(off) * 0.95)] < 0.5


# -- the rate itself


def test_a_rate_needs_something_to_go_by() -> None:
    rate = DrainRate(10.0)
    assert rate.per_s(10.0, None) is None
    assert rate.per_s(12.0, None) is None
    assert rate.per_s(12.0, 4.0) == pytest.approx(32 / (2 + 8)), "nothing has moved in 2 s: it may be less than 4"
    assert retry_after_s(5, None) == 1


def test_old_admissions_do_not_count() -> None:
    rate = DrainRate(0.0)
    for second in range(100):
        for _ in range(10):
            rate.admitted(float(second))
    assert rate.per_s(100.0, None) == pytest.approx(10, rel=0.1)
    for second in range(100, 200):
        rate.admitted(float(second))
    assert rate.per_s(200.0, None) == pytest.approx(1, rel=0.1)
    assert len(rate._slots) <= 62


@given(
    times=st.lists(st.floats(0, 500)), now_s=st.floats(0, 600), expected=st.none() | st.floats(0.001, 1000),
    ahead=st.integers(0, 10**6),
)  # fmt: skip
def test_any_history_gives_whole_seconds_within_bounds(
    times: list[float], now_s: float, expected: float | None, ahead: int
) -> None:
    rate = DrainRate(0.0)
    for time_s in sorted(times):
        rate.admitted(time_s)
    per_s = rate.per_s(max([now_s, *times]), expected)
    assert per_s is None or per_s > 0
    assert isinstance(retry_after_s(ahead, per_s), int)
    assert 1 <= retry_after_s(ahead, per_s) <= MAX_RETRY_AFTER_S
