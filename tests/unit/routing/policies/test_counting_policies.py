"""Round robin, random, least requests and power of two: what each does that the others do not."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.decision import Send
from poise.core.request import RequestFacts
from poise.fleet.fleet import Fleet
from poise.routing.policies.least_requests import LeastRequests
from poise.routing.policies.power_of_two import PowerOfTwo
from poise.routing.policies.random_choice import RandomChoice
from poise.routing.policies.round_robin import RoundRobin
from poise.routing.policy import Policy
from support.fleets import REQUEST, Load, fleet_of, serve_each_once, spec

counts = st.lists(st.integers(0, 6), min_size=2, max_size=6)


def chosen(policy: Policy, fleet: Fleet) -> int:
    decision = policy.choose(RequestFacts(), fleet.pool(None), 0.0, ())
    assert isinstance(decision, Send)
    return decision.slot


@given(order=st.permutations(range(5)), in_flight=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_round_robin_goes_round_in_the_order_of_service_whatever_the_load(
    order: list[int], in_flight: list[int]
) -> None:
    fleet = fleet_of([Load(in_flight=count) for count in in_flight])
    serve_each_once(fleet, order)
    served = []
    for _ in range(10):
        served.append(chosen(RoundRobin(), fleet))
        fleet.dispatch(served[-1], REQUEST, 0.0)
    assert served == order * 2


def test_round_robin_takes_in_a_new_replica_and_goes_on() -> None:
    fleet = fleet_of([Load(), Load()])
    serve_each_once(fleet, [0, 1])
    fleet.join(spec("new"))
    served = []
    for _ in range(6):
        slot = chosen(RoundRobin(), fleet)
        served.append(fleet.at(slot).name)
        fleet.dispatch(slot, REQUEST, 0.0)
    assert served == ["new", "r0", "r1"] * 2


@given(in_flight=counts)
def test_least_requests_finds_the_fewest_in_any_order(in_flight: list[int]) -> None:
    fleet = fleet_of([Load(in_flight=count) for count in in_flight])
    assert in_flight[chosen(LeastRequests(), fleet)] == min(in_flight)


@given(in_flight=counts, seed=st.integers(0, 1000))
def test_power_of_two_never_takes_the_busiest_alone(in_flight: list[int], seed: int) -> None:
    fleet = fleet_of([Load(in_flight=count) for count in in_flight])
    slot = chosen(PowerOfTwo(Random(seed)), fleet)
    assert in_flight.count(max(in_flight)) > 1 or in_flight[slot] < max(in_flight)


def test_power_of_two_draws_every_pair() -> None:
    """With loads 0 < 1 < 2 < 3 the least wins 3 of 6 pairs, the next 2, the next 1."""
    fleet = fleet_of([Load(in_flight=count) for count in (2, 0, 3, 1)])
    policy = PowerOfTwo(Random(3))
    wins = Counter(chosen(policy, fleet) for _ in range(6000))
    assert wins[2] == 0
    assert [wins[1], wins[3], wins[0]] == pytest.approx([3000, 2000, 1000], abs=200)


def test_random_takes_all_alike_whatever_the_load() -> None:
    fleet = fleet_of([Load(in_flight=count) for count in (9, 0, 0)])
    policy = RandomChoice(Random(4))
    picks = Counter(chosen(policy, fleet) for _ in range(3000))
    assert [picks[slot] for slot in range(3)] == pytest.approx([1000] * 3, abs=130)


@pytest.mark.parametrize("policy_class", [RandomChoice, PowerOfTwo])
def test_chance_comes_from_the_given_source_alone(policy_class: type[RandomChoice] | type[PowerOfTwo]) -> None:
    fleet = fleet_of([Load()] * 5)
    runs = []
    for _ in range(2):
        policy = policy_class(Random(11))
        runs.append([chosen(policy, fleet) for _ in range(50)])
    assert runs[0] == runs[1]
