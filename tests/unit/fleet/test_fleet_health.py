"""What the replicas' health means for who may be sent a request, through any order of events over any pools."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica
from poise.fleet.ticket import Ticket
from poise.health.breaker import BreakerState, Sign
from poise.health.condition import DRAIN_BELIEVED_S
from poise.health.probes import Probe
from poise.health.settings import BreakerSettings, HealthSettings

BREAKER = BreakerSettings(failures=2, window_s=30.0, open_s=5.0)
HEALTH = HealthSettings(interval_s=1.0, timeout_s=1.0, failures=2, stall_s=10.0, slow_start_s=8.0)
ASKED = RequestFacts()
SIGNS = st.sampled_from([None, Sign.NOTHING, Sign.WELL, Sign.FAILED, Sign.UNREACHABLE, Sign.DRAINS])
PROBES = st.sampled_from([Probe.WELL, Probe.MISSED, Probe.REFUSED])
MODELS = st.lists(st.sampled_from("mno"), max_size=2, unique=True).map(tuple)


def spec(name: str) -> ReplicaSpec:
    return ReplicaSpec(name, parse_replica_url("http://h:1"))


def fleet_of(*names: str, **models: tuple[str, ...]) -> Fleet:
    fleet = Fleet(breaker=BREAKER, health=HEALTH)
    for name in names:
        fleet.join(spec(name))
    for name, served in models.items():
        replica = fleet.named(name)
        assert replica is not None
        fleet.serves(replica, served)
    return fleet


def fail(fleet: Fleet, replica: Replica, times: int = BREAKER.failures, now_s: float = 0.0) -> None:
    for _ in range(times):
        fleet.settle(fleet.dispatch(replica.slot, ASKED, now_s), Outcome.FAILED, now_s)


def read(fleet: Fleet, replica: Replica, now_s: float, **figures: float | bool) -> None:
    fleet.scrape_began(replica)
    fleet.scraped(replica, LoadReading(**figures), now_s)  # type: ignore[arg-type]


def available(fleet: Fleet) -> list[str]:
    return [replica.name for replica in fleet if replica.available]


class HealthMachine(RuleBasedStateMachine):
    """Anything may happen to any replica; the invariants hold whatever it was."""

    @initialize(models=st.lists(MODELS, min_size=1, max_size=5))
    def begin(self, models: list[tuple[str, ...]]) -> None:
        names = [f"r{number}" for number in range(len(models))]
        self.fleet = fleet_of(*names, **dict(zip(names, models, strict=True)))
        self.replicas = list(self.fleet)
        self.tickets: list[Ticket] = []
        self.now_s = 100.0

    def replica(self, data: st.DataObject) -> Replica:
        return data.draw(st.sampled_from(self.replicas))

    @rule(data=st.data())
    def dispatch(self, data: st.DataObject) -> None:
        self.tickets.append(self.fleet.dispatch(self.replica(data).slot, ASKED, self.now_s))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def first_output(self, data: st.DataObject) -> None:
        self.fleet.first_output(data.draw(st.sampled_from(self.tickets)), self.now_s)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), outcome=st.sampled_from(Outcome), sign=SIGNS)
    def settle(self, data: st.DataObject, outcome: Outcome, sign: int | None) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        self.fleet.settle(ticket, outcome, self.now_s, sign)

    @rule(data=st.data(), probe=PROBES)
    def probe(self, data: st.DataObject, probe: int) -> None:
        self.fleet.probed(self.replica(data), probe, self.now_s)

    @rule(data=st.data(), running=st.integers(0, 1), tokens=st.integers(0, 2), asleep=st.none() | st.booleans())
    def scrape(self, data: st.DataObject, running: int, tokens: int, asleep: bool | None) -> None:
        figures = {"running": float(running), "generation_tokens": float(tokens), "asleep": asleep}
        read(self.fleet, self.replica(data), self.now_s, **figures)  # type: ignore[arg-type]

    @rule(data=st.data(), models=MODELS)
    def serve(self, data: st.DataObject, models: tuple[str, ...]) -> None:
        self.fleet.serves(self.replica(data), models)

    @rule(data=st.data(), taken_out=st.booleans())
    def take_out(self, data: st.DataObject, taken_out: bool) -> None:
        (self.fleet.drain if taken_out else self.fleet.resume)(self.replica(data).name)

    @rule(seconds=st.floats(0, 9))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.fleet.heal(self.now_s)

    def pools(self) -> list[list[Replica]]:
        return [list(self.fleet.pool(model).replicas) for model in ("m", "n", "o", None, "unknown")]

    @invariant()
    def somebody_may_be_sent_a_request_unless_it_is_certain_that_nobody_can_take_it(self) -> None:
        for pool in self.pools():
            assert any(r.available for r in pool) == any(not r.condition.out for r in pool)

    @invariant()
    def who_is_certainly_out_gets_nothing(self) -> None:
        out = (ReplicaState.ASLEEP, ReplicaState.DRAINING, ReplicaState.JOINING)
        assert not any(r.available for r in self.replicas if r.state in out)

    @invariant()
    def doubts_count_where_every_model_has_somebody_better(self) -> None:
        for replica in self.replicas:
            served = [pool for pool in self.pools() if replica in pool]
            better_everywhere = served and all(any(peer.condition.good for peer in pool) for pool in served)
            doubted = replica.state is ReplicaState.UNHEALTHY or replica.condition.breaker.state is BreakerState.OPEN
            if better_everywhere and doubted:
                assert not replica.available

    @invariant()
    def whoever_recovers_may_always_take_one(self) -> None:
        assert all(r.available for r in self.replicas if r.condition.good and r.in_flight == 0)

    @invariant()
    def time_is_only_needed_by_those_that_are_not_well(self) -> None:
        before = available(self.fleet)
        self.fleet.heal(self.now_s)
        assert available(self.fleet) == before


TestFleetHealth = HealthMachine.TestCase
TestFleetHealth.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_an_open_breaker_takes_a_replica_out_and_the_last_one_never() -> None:
    fleet = fleet_of("a", "b")
    a, b = fleet
    fail(fleet, a, now_s=0.0)
    assert available(fleet) == ["b"]
    fail(fleet, b, now_s=1.0)
    assert available(fleet) == ["a", "b"], "nobody is better"
    fleet.first_output(fleet.dispatch(b.slot, ASKED, 2.0), 2.1)
    assert available(fleet) == ["b"], "one that has shown to be well is"


def test_doubts_about_the_only_replica_of_a_model_do_not_count() -> None:
    fleet = fleet_of("a", "b", a=("m", "n"), b=("m",))
    a, b = fleet
    fail(fleet, a)
    fail(fleet, b)
    fleet.first_output(fleet.dispatch(b.slot, ASKED, 0.0), 0.1)
    assert available(fleet) == ["a", "b"], "n has nobody but a"


def test_one_request_at_a_time_tries_a_replica_again() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    fail(fleet, a, now_s=0.0)
    fleet.heal(4.9)
    assert not a.available
    fleet.heal(5.0)
    assert a.available and a.condition.breaker.state is BreakerState.HALF_OPEN
    trial = fleet.dispatch(a.slot, ASKED, 5.0)
    assert not a.available
    fleet.settle(trial, Outcome.CANCELLED, 5.1)
    assert a.available, "a caller that left has tried nothing"
    fleet.first_output(fleet.dispatch(a.slot, ASKED, 5.2), 5.3)
    assert (a.condition.breaker.state, a.available) == (BreakerState.CLOSED, False), (
        "as much as its idle peer holds, but one"
    )


@pytest.mark.parametrize("busy", [1, 8])
def test_who_comes_back_gets_a_growing_share_of_what_its_peers_hold(busy: int) -> None:
    fleet = fleet_of("a", "b")
    a, b = fleet
    fleet.probed(a, Probe.REFUSED, 0.0)
    for _ in range(busy):
        fleet.dispatch(b.slot, ASKED, 0.0)
    fleet.probed(a, Probe.WELL, 1.0)
    held = []
    for now_s in (1.0, 3.0, 5.0, 9.0):
        fleet.heal(now_s)
        while a.available and a.in_flight < 50:
            fleet.dispatch(a.slot, ASKED, now_s)
        held.append(a.in_flight)
    assert held == ([1, 1, 1, 50] if busy == 1 else [1, 2, 4, 50])


def test_more_for_the_peers_is_more_for_who_comes_back() -> None:
    fleet = fleet_of("a", "b")
    a, b = fleet
    fleet.probed(a, Probe.REFUSED, 0.0)
    fleet.probed(a, Probe.WELL, 1.0)
    fleet.heal(5.0)
    fleet.dispatch(a.slot, ASKED, 5.0)
    assert not a.available
    tickets = [fleet.dispatch(b.slot, ASKED, 5.0) for _ in range(3)]
    assert a.available
    fleet.settle(tickets[0], Outcome.COMPLETED, 5.1)
    assert not a.available


def test_who_comes_back_is_held_back_by_nobody_when_the_others_fail() -> None:
    fleet = fleet_of("a", "b")
    a, b = fleet
    fleet.probed(a, Probe.REFUSED, 0.0)
    fleet.probed(a, Probe.WELL, 1.0)
    fleet.dispatch(a.slot, ASKED, 1.0)
    assert not a.available, "its idle peer could take the next"
    fleet.probed(b, Probe.REFUSED, 1.0)
    assert a.available


def test_dead_is_certain_and_doubted_is_not() -> None:
    fleet = fleet_of("a")
    (a,) = fleet
    for _ in range(HEALTH.failures):
        fleet.probed(a, Probe.MISSED, 0.0)
    assert (a.state, a.available, fleet.pool(None).hopeless) == (ReplicaState.UNHEALTHY, True, False)
    fleet.probed(a, Probe.REFUSED, 1.0)
    assert (a.state, a.available, fleet.pool(None).hopeless) == (ReplicaState.JOINING, False, True), "never seen"
    fleet.probed(a, Probe.WELL, 2.0)
    assert (a.state, a.available) == (ReplicaState.READY, True)
    fleet.probed(a, Probe.REFUSED, 3.0)
    assert a.state is ReplicaState.UNHEALTHY


@pytest.mark.parametrize("probed", [False, True])
def test_a_request_that_is_refused_tells_of_a_death_if_a_probe_can_tell_of_life(probed: bool) -> None:
    fleet = fleet_of("a")
    (a,) = fleet
    if probed:
        fleet.probed(a, Probe.WELL, 0.0)
    fleet.settle(fleet.dispatch(0, ASKED, 1.0), Outcome.FAILED, 1.0, Sign.UNREACHABLE)
    assert (a.condition.out, a.available) == (probed, not probed)
    fleet.probed(a, Probe.WELL, 2.0)
    assert a.available


def test_a_replica_at_work_may_miss_probes() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    for now_s in (1.0, 2.0, 3.0):
        fleet.flowed(a, now_s)
        fleet.probed(a, Probe.MISSED, now_s)
    assert available(fleet) == ["a", "b"]
    fleet.probed(a, Probe.MISSED, 6.0)
    assert available(fleet) == ["b"]


def test_an_engine_that_drains_gets_nothing_until_another_process_answers() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    running = fleet.dispatch(a.slot, ASKED, 0.0)
    fleet.settle(fleet.dispatch(a.slot, ASKED, 0.0), Outcome.FAILED, 0.0, Sign.DRAINS)
    fleet.probed(a, Probe.WELL, 1.0)
    fleet.heal(BREAKER.open_s + 1)
    assert (a.state, available(fleet)) == (ReplicaState.DRAINING, ["b"])
    fleet.settle(running, Outcome.COMPLETED, 20.0)
    assert not a.available
    fleet.probed(a, Probe.REFUSED, 21.0)
    assert a.state is ReplicaState.UNHEALTHY
    fleet.probed(a, Probe.WELL, 30.0)
    assert (a.state, a.condition.breaker.state) == (ReplicaState.READY, BreakerState.HALF_OPEN)
    assert a.available, "for one"


def test_an_engine_that_said_by_mistake_that_it_drains_is_tried_again() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    fleet.settle(fleet.dispatch(a.slot, ASKED, 0.0), Outcome.FAILED, 0.0, Sign.DRAINS)
    fleet.heal(DRAIN_BELIEVED_S)
    assert (a.state, a.available) == (ReplicaState.READY, True)


def test_the_last_one_that_drains_is_sent_nothing() -> None:
    fleet = fleet_of("a")
    fleet.settle(fleet.dispatch(0, ASKED, 0.0), Outcome.FAILED, 0.0, Sign.DRAINS)
    assert (available(fleet), fleet.pool(None).hopeless) == ([], True)


def test_a_restarted_engine_starts_slowly_and_with_a_clean_record() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    read(fleet, a, 0.0, generation_tokens=9.0)
    fail(fleet, a, times=1)
    read(fleet, a, 1.0, generation_tokens=2.0)
    assert (a.restarts, a.share) == (1, 0.0)
    fail(fleet, a, times=1, now_s=1.0)
    assert a.condition.breaker.state is BreakerState.CLOSED


def test_a_hung_engine_is_taken_out_though_its_pages_are_fine() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    for now_s in (0.0, 5.0, 10.0):
        assert a.available
        read(fleet, a, now_s, running=2.0, generation_tokens=9.0)
        fleet.probed(a, Probe.WELL, now_s)
    assert (a.state, available(fleet)) == (ReplicaState.UNHEALTHY, ["b"])
    read(fleet, a, 11.0, running=2.0, generation_tokens=10.0)
    assert a.state is ReplicaState.READY


def test_who_wakes_up_starts_slowly() -> None:
    fleet = fleet_of("a", "b")
    a, _ = fleet
    read(fleet, a, 0.0, asleep=True)
    assert available(fleet) == ["b"]
    read(fleet, a, 1.0, asleep=False)
    assert (a.available, a.share) == (True, 0.0)
