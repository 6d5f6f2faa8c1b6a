"""What a replica is charged, against a plain model of it, through any order of events."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import EXPECTED_OUTPUT_TOKENS, Fleet
from poise.fleet.replica import Replica
from poise.fleet.ticket import Ticket

STALE_S = 2.0
PICK = st.integers(0, 1000)
RATIO = st.none() | st.floats(0, 1).map(lambda ratio: round(ratio, 3))
READINGS = st.builds(
    LoadReading,
    kv_usage_ratio=RATIO,
    gpu_utilisation_ratio=RATIO,
    waiting=st.none() | st.integers(0, 40).map(float),
    asleep=st.none() | st.booleans(),
    kv_capacity_tokens=st.none() | st.just(100_000),
    generation_tokens=st.none() | st.integers(0, 3).map(float),
)


@dataclass
class Charge:
    """One request as the model sees it."""

    ticket: Ticket
    facts: RequestFacts
    answered: bool = False
    settled: bool = False
    before_scrape: bool = False
    """Dispatched before the scrape that is on its way began."""
    seen: bool = False
    """Part of the reading in use."""

    @property
    def tokens(self) -> int:
        expected = min(self.facts.output_tokens or EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS)
        return self.facts.prompt_tokens + expected


@dataclass
class Modelled:
    """One replica as the model sees it, in the fleet or gone."""

    replica: Replica
    charges: list[Charge] = field(default_factory=list)
    reading: LoadReading | None = None
    read_at_s: float = 0.0
    scraping: bool = False
    drained: bool = False

    def open(self) -> list[Charge]:
        return [charge for charge in self.charges if not charge.settled]


class FleetMachine(RuleBasedStateMachine):
    """Every rule does the same to the fleet and to the model; the invariants compare the two."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(stale_s=STALE_S)
        self.present: dict[str, Modelled] = {}
        self.left: list[Modelled] = []
        self.now_s = 1000.0

    def pick(self, pick: int) -> Modelled:
        return list(self.present.values())[pick % len(self.present)]

    @property
    def held(self) -> list[Modelled]:
        """Whoever has a slot: those present, and those that left with requests still open."""
        return [*self.present.values(), *(one for one in self.left if one.open())]

    @property
    def gone(self) -> list[Modelled]:
        return [one for one in self.left if not one.open()]

    def open_charges(self) -> list[tuple[Modelled, Charge]]:
        return [(one, charge) for one in self.held for charge in one.open()]

    @precondition(lambda self: len(self.present) < 4)
    @rule(name=st.sampled_from("abcd"))
    def join(self, name: str) -> None:
        if name not in self.present:
            replica = self.fleet.join(ReplicaSpec(name, parse_replica_url("http://h:1")))
            self.present[name] = Modelled(replica)

    @precondition(lambda self: self.present)
    @rule(pick=PICK)
    def leave(self, pick: int) -> None:
        one = self.pick(pick)
        self.fleet.leave(one.replica.name)
        self.left.append(self.present.pop(one.replica.name))

    @precondition(lambda self: self.present)
    @rule(pick=PICK, drained=st.booleans())
    def drain_or_resume(self, pick: int, drained: bool) -> None:
        one = self.pick(pick)
        (self.fleet.drain if drained else self.fleet.resume)(one.replica.name)
        one.drained = drained

    @precondition(lambda self: self.present)
    @rule(pick=PICK, prompt=st.integers(0, 50_000), output=st.none() | st.integers(1, 9000))
    def dispatch(self, pick: int, prompt: int, output: int | None) -> None:
        one = self.pick(pick)
        facts = RequestFacts(prompt_tokens=prompt, output_tokens=output)
        one.charges.append(Charge(self.fleet.dispatch(one.replica.slot, facts, self.now_s), facts))

    @precondition(lambda self: self.open_charges())
    @rule(pick=PICK)
    def first_output(self, pick: int) -> None:
        charges = self.open_charges()
        charge = charges[pick % len(charges)][1]
        self.fleet.first_output(charge.ticket, self.now_s)
        charge.answered = True

    @precondition(lambda self: self.open_charges())
    @rule(pick=PICK, outcome=st.sampled_from(Outcome))
    def settle(self, pick: int, outcome: Outcome) -> None:
        charges = self.open_charges()
        charge = charges[pick % len(charges)][1]
        self.fleet.settle(charge.ticket, outcome, self.now_s)
        charge.settled = charge.answered = True

    @precondition(lambda self: self.present)
    @rule(pick=PICK)
    def scrape_began(self, pick: int) -> None:
        one = self.pick(pick)
        self.fleet.scrape_began(one.replica)
        one.scraping = True
        for charge in one.charges:
            charge.before_scrape = True

    @precondition(lambda self: any(one.scraping for one in self.held))
    @rule(pick=PICK, reading=READINGS)
    def scraped(self, pick: int, reading: LoadReading) -> None:
        scraping = [one for one in self.held if one.scraping]
        one = scraping[pick % len(scraping)]
        self.fleet.scraped(one.replica, reading, self.now_s)
        one.scraping, one.reading, one.read_at_s = False, reading, self.now_s
        for charge in one.charges:
            charge.seen = charge.seen or charge.before_scrape

    @precondition(lambda self: self.gone)
    @rule(pick=PICK, reading=READINGS)
    def scraped_after_leaving(self, pick: int, reading: LoadReading) -> None:
        self.fleet.scraped(self.gone[pick % len(self.gone)].replica, reading, self.now_s)

    @precondition(lambda self: self.present)
    @rule(pick=PICK)
    def scrape_failed(self, pick: int) -> None:
        one = self.pick(pick)
        self.fleet.scrape_failed(one.replica, "no answer")
        one.scraping = False

    @rule(seconds=st.floats(0, 3))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.fleet.advance(self.now_s)
        for one in self.held:
            if self.now_s - one.read_at_s > STALE_S:
                one.reading = None

    @invariant()
    def counts_are_those_of_open_tickets(self) -> None:
        for one in [*self.present.values(), *self.left]:
            waiting = [charge for charge in one.open() if not charge.answered]
            assert one.replica.in_flight == len(one.open())
            assert one.replica.held_tokens == sum(charge.tokens for charge in one.open())
            assert one.replica.prefill_tokens == sum(charge.facts.prompt_tokens for charge in waiting)
            since_poll = one.replica.since_poll
            assert since_poll.requests == sum(not charge.seen for charge in waiting)
            assert since_poll.tokens == sum(charge.tokens for charge in one.open() if not charge.seen)

    @invariant()
    def what_is_compared_is_the_reading_or_the_worst_of_the_peers_and_what_came_since(self) -> None:
        def known(term: str) -> list[float]:
            values = [getattr(one.reading, term) for one in self.held if one.reading]
            return [value for value in values if value is not None]

        for one in self.held:
            reading, replica = one.reading or LoadReading(), one.replica
            capacity_tokens = reading.kv_capacity_tokens
            charged = replica.since_poll.tokens / capacity_tokens if capacity_tokens else 0.0
            for term, value, since in (
                ("kv_usage_ratio", replica.kv, charged),
                ("waiting", replica.queue, replica.since_poll.requests),
                ("gpu_utilisation_ratio", replica.gpu, 0.0),
            ):
                own = getattr(reading, term)
                base = own if own is not None else max(known(term), default=0.0)
                assert value == pytest.approx(base + since, abs=1e-9), (term, replica.name)
        terms = ("kv_usage_ratio", "waiting", "gpu_utilisation_ratio")
        assert [bool(self.fleet.known_terms & 1 << bit) for bit in range(3)] == [bool(known(term)) for term in terms]

    @invariant()
    def only_replicas_of_the_fleet_are_available(self) -> None:
        assert [replica.name for replica in self.fleet] == [r.name for r in sorted(self.fleet, key=lambda r: r.slot)]
        assert {id(replica) for replica in self.fleet} == {id(one.replica) for one in self.held}
        assert not any(one.replica.available for one in self.left)
        assert not any(one.replica.available for one in self.present.values() if one.drained)
        assert all(self.fleet.at(one.replica.slot) is one.replica for one in self.held)
        assert {name: one.replica for name, one in self.present.items()}.items() <= self.fleet.by_name().items()
        assert set(self.fleet.by_name()) == {one.replica.name for one in self.held}

    def teardown(self) -> None:
        for _, charge in self.open_charges():
            self.fleet.settle(charge.ticket, Outcome.CANCELLED, self.now_s)
        for one in [*self.present.values(), *self.left]:
            replica, since_poll = one.replica, one.replica.since_poll
            assert (replica.in_flight, replica.prefill_tokens, since_poll.requests, since_poll.tokens) == (0, 0, 0, 0)
            assert sum(replica.outcomes.values()) == len(one.charges)


TestFleetAccounting = FleetMachine.TestCase
TestFleetAccounting.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
