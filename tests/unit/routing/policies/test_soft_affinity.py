"""Home while it has headroom, else the least loaded; the same home in every process."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.decision import Decision, Send
from poise.core.errors import ConfigError
from poise.core.request import RequestFacts
from poise.fleet.fleet import Fleet
from poise.routing.load_score import LoadWeights
from poise.routing.policies.soft_affinity import SoftAffinity, SoftAffinitySettings
from poise.routing.rendezvous import rendezvous
from support.fleets import Load, fleet_of, loads

SESSION = RequestFacts(session=2**64 - 7)
IDLE = Load(kv=0.0, waiting=0.0, gpu=0.0)
"""Score 0."""
BUSY = Load(kv=0.5, waiting=4.0, gpu=0.5)
"""Score 0.25 + 0.06 + 0.1 = 0.41."""


def choose(
    fleet: Fleet, tried: tuple[int, ...] = (), request: RequestFacts = SESSION, threshold: float = 0.7
) -> Decision:
    policy = SoftAffinity(SoftAffinitySettings(threshold))
    return policy.choose(request, fleet.pool(None), 0.0, tried)


def fleet_with_home(home_load: Load, other: Load = IDLE) -> tuple[Fleet, int]:
    """Four replicas; the session's home has `home_load`, the others `other`."""
    home = rendezvous(SESSION.session or 0, fleet_of([other] * 4).pool(None).replicas).slot
    return fleet_of([home_load if slot == home else other for slot in range(4)]), home


def test_home_even_where_others_are_idle() -> None:
    fleet, home = fleet_with_home(BUSY)
    decision = choose(fleet)
    assert decision == Send(home, "home", ((home, pytest.approx(0.41)),))


@pytest.mark.parametrize(("threshold", "reason"), [(0.42, "home"), (0.40, "spill"), (0.0, "spill")])
def test_away_from_home_once_its_score_reaches_the_threshold(threshold: float, reason: str) -> None:
    fleet, home = fleet_with_home(BUSY)
    decision = choose(fleet, threshold=threshold)
    assert isinstance(decision, Send)
    assert decision.reason == reason
    assert (decision.slot == home) == (reason == "home")


def test_away_from_home_while_it_is_unavailable_and_back_after() -> None:
    fleet, home = fleet_with_home(IDLE)
    fleet.at(home).available = False
    decision = choose(fleet)
    assert isinstance(decision, Send)
    assert (decision.slot != home, decision.reason) == (True, "spill")
    fleet.at(home).available = True
    assert choose(fleet) == Send(home, "home", ((home, 0.0),))


def test_away_from_home_where_that_was_tried() -> None:
    fleet, home = fleet_with_home(IDLE, BUSY)
    decision = choose(fleet, tried=(home,))
    assert isinstance(decision, Send)
    assert (decision.slot != home, decision.reason) == (True, "spill")


@given(given=st.lists(loads(), min_size=1, max_size=6))
def test_without_a_session_the_least_loaded(given: list[Load]) -> None:
    fleet = fleet_of(given)
    decision = choose(fleet, request=RequestFacts())
    if isinstance(decision, Send):
        assert decision.reason == "balanced"
        assert dict(decision.terms)[decision.slot] == pytest.approx(min(cost for _, cost in decision.terms))


def test_session_0_is_a_session() -> None:
    decision = choose(fleet_of([IDLE] * 3), request=RequestFacts(session=0))
    assert isinstance(decision, Send)
    assert decision.reason == "home"


def test_home_is_that_of_the_pool_that_serves_the_model() -> None:
    """Sessions of two models are not mixed up by one policy."""
    fleet = fleet_of([IDLE] * 4)
    fleet.serves(fleet.at(0), ("small",))
    for slot in (1, 2, 3):
        fleet.serves(fleet.at(slot), ("large",))
    policy = SoftAffinity(SoftAffinitySettings())
    for _ in range(2):
        for model, slots in (("small", {0}), ("large", {1, 2, 3})):
            decision = policy.choose(SESSION, fleet.pool(model), 0.0, ())
            assert isinstance(decision, Send)
            assert decision.slot in slots


@pytest.mark.parametrize("threshold", [-0.1, float("nan")])
def test_thresholds_without_meaning_are_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="affinity_threshold is"):
        SoftAffinitySettings(threshold)


def test_weights_are_used() -> None:
    fleet, home = fleet_with_home(Load(kv=0.8, waiting=0.0, gpu=0.0))
    queue_only = SoftAffinitySettings(0.3, LoadWeights(kv=0.0, queue=1.0, gpu=0.0))
    assert SoftAffinity(queue_only).choose(SESSION, fleet.pool(None), 0.0, ()) == Send(home, "home", ((home, 0.0),))
    decision = choose(fleet, threshold=0.3)
    assert isinstance(decision, Send)
    assert decision.reason == "spill"


PLACE_200_SESSIONS = """
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.fleet.fleet import Fleet
from poise.routing.policies.soft_affinity import SoftAffinity, SoftAffinitySettings
from poise.wire.facts import facts_from_json

fleet = Fleet()
for name in ("a", "b", "c", "d"):
    fleet.join(ReplicaSpec(name, parse_replica_url("http://127.0.0.1:1")))
policy = SoftAffinity(SoftAffinitySettings())
for number in range(200):
    facts = [
        facts_from_json(b"{}", b"session-%d" % number, None),
        facts_from_json(b'{"user": %d, "messages": [{"role": "user", "content": "hello"}]}' % number, None, None),
        facts_from_json(b'{"prompt": "%s"}' % (b"%d" % number * 300), None, None),
    ]
    print([policy.choose(one, fleet.pool(None), 0.0, ()).slot for one in facts])
"""


def test_two_processes_place_sessions_alike_whatever_pythons_hash_seed() -> None:
    placed = [
        subprocess.run(
            [sys.executable, "-c", PLACE_200_SESSIONS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.splitlines()
        for seed in ("0", "12345")
    ]  # fmt: skip
    assert placed[0] == placed[1]
    assert len(placed[0]) == 200
    assert len(set(placed[0])) > 30
