"""What holds for every policy in the table, whatever the fleet looks like."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.decision import Refuse, Send, Wait
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet
from poise.fleet.pool import Pool
from poise.routing.policy import Policy
from poise.routing.registry import POLICIES, make_policy
from support.fleets import Load, everything_in, fleet_of, loads, serve_each_once

BY_CHANCE = {"random", "power_of_two"}
every_policy = pytest.mark.parametrize("name", POLICIES)
every_exact_policy = pytest.mark.parametrize("name", sorted(set(POLICIES) - BY_CHANCE))
requests = st.builds(RequestFacts, session=st.none() | st.integers(0, 2**64 - 1))
fleets = st.lists(loads(), max_size=8).map(fleet_of)
slots = st.sets(st.integers(0, 8))


def make(name: str, seed: int = 0) -> Policy:
    return make_policy(name, {}, Random(seed))


@every_policy
@given(fleet=fleets, request=requests, tried=slots)
def test_sends_only_to_available_untried_replicas(
    name: str, fleet: Fleet, request: RequestFacts, tried: set[int]
) -> None:
    decision = make(name).choose(request, fleet.pool(None), 7.0, tried)
    untried = [replica for replica in fleet if replica.slot not in tried]
    allowed = {replica.slot for replica in untried if replica.available}
    if allowed:
        assert isinstance(decision, Send)
        assert decision.slot in allowed
        assert {slot for slot, _ in decision.terms} <= allowed
    elif untried:
        assert decision == Wait(7.1, "no replica available")
    else:
        assert decision == Refuse("no replica left")


@every_policy
@given(fleet=fleets, request=requests, tried=slots)
def test_sends_to_the_least_of_its_terms_for_a_short_reason(
    name: str, fleet: Fleet, request: RequestFacts, tried: set[int]
) -> None:
    decision = make(name).choose(request, fleet.pool(None), 0.0, tried)
    if isinstance(decision, Send):
        assert decision.reason == decision.reason.lower()
        assert 1 <= len(decision.reason.split()) <= 2
        if decision.terms:
            assert dict(decision.terms)[decision.slot] == pytest.approx(min(cost for _, cost in decision.terms))


@every_policy
@given(fleet=fleets, request=requests, tried=slots)
def test_changes_nothing_that_it_sees(name: str, fleet: Fleet, request: RequestFacts, tried: set[int]) -> None:
    view = fleet.pool(None)
    before = [everything_in(replica) for replica in fleet], list(view.replicas), view.generation, set(tried)
    make(name).choose(request, view, 0.0, tried)
    assert before == ([everything_in(replica) for replica in fleet], list(view.replicas), view.generation, tried)


@every_exact_policy
@given(seen=st.lists(st.tuples(fleets, requests), max_size=3), fleet=fleets, request=requests)
def test_remembers_nothing_of_what_it_decided_before(
    name: str, seen: list[tuple[Fleet, RequestFacts]], fleet: Fleet, request: RequestFacts
) -> None:
    used = make(name)
    for earlier_fleet, earlier_request in seen:
        used.choose(earlier_request, earlier_fleet.pool(None), 0.0, ())
    assert used.choose(request, fleet.pool(None), 0.0, ()) == make(name).choose(request, fleet.pool(None), 0.0, ())


@every_exact_policy
@given(given=st.lists(loads(), min_size=1, max_size=6), request=requests, data=st.data())
def test_the_order_of_the_replicas_does_not_matter(
    name: str, given: list[Load], request: RequestFacts, data: st.DataObject
) -> None:
    fleet = fleet_of(given)
    replicas = list(fleet.pool(None).replicas)
    serve_each_once(fleet, data.draw(st.permutations([replica.slot for replica in replicas])))
    shuffled = Pool(fleet, data.draw(st.permutations(replicas)))
    decision = make(name).choose(request, fleet.pool(None), 0.0, ())
    other = make(name).choose(request, shuffled, 0.0, ())
    if isinstance(decision, Send):
        assert isinstance(other, Send)
        assert (other.slot, other.reason, sorted(other.terms)) == (
            decision.slot,
            decision.reason,
            sorted(decision.terms),
        )
    else:
        assert other == decision


def serve(policy: Policy, fleet: Fleet, count: int, *, at_once: bool) -> Counter[str]:
    """Where `count` requests without a session go, all at once or each after the last has ended."""
    served: Counter[str] = Counter()
    for _ in range(count):
        request = RequestFacts(prompt_tokens=100)
        decision = policy.choose(request, fleet.pool(None), 0.0, ())
        assert isinstance(decision, Send)
        served[fleet.at(decision.slot).name] += 1
        ticket = fleet.dispatch(decision.slot, request, 0.0)
        if not at_once:
            fleet.first_output(ticket, 1.0)
            fleet.settle(ticket, Outcome.COMPLETED, 1.0)
    return served


@every_exact_policy
@pytest.mark.parametrize("at_once", [True, False])
@given(load=loads().filter(lambda load: load.kv is None or load.kv < 0.8), order=st.permutations(["a", "b", "c"]))
def test_equal_replicas_share_exactly(name: str, at_once: bool, load: Load, order: list[str]) -> None:
    equal = Load(load.kv, load.waiting, load.gpu)
    served = serve(make(name), fleet_of([equal] * 3, order), 30, at_once=at_once)
    assert served == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize("name", sorted(BY_CHANCE))
@pytest.mark.parametrize("seed", range(10))
def test_equal_replicas_share_about_evenly_by_chance(name: str, seed: int) -> None:
    served = serve(make(name, seed), fleet_of([Load()] * 3), 600, at_once=False)
    assert all(150 <= served[replica] <= 250 for replica in ("r0", "r1", "r2")), served


@every_policy
def test_a_replica_without_readings_is_not_preferred_to_the_busiest_that_has_them(name: str) -> None:
    """Unknown never beats known: the silent replica counts as loaded as the worst of its peers."""
    fleet = fleet_of([Load(kv=0.1, waiting=0.0), Load(kv=0.8, waiting=15.0), Load()])
    silent = fleet.at(2)
    assert (silent.kv, silent.queue) == (0.8, 15.0)
    if name in ("load_score", "soft_affinity"):
        decision = make(name).choose(RequestFacts(), fleet.pool(None), 0.0, ())
        assert isinstance(decision, Send)
        assert decision.slot == 0
        costs = dict(decision.terms)
        assert costs[2] >= costs[1] > costs[0]
