"""Homes of sessions: even, steady when the fleet changes, the same in every process."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.fleet.replica import Replica
from poise.health.condition import Condition
from poise.health.settings import BreakerSettings, HealthSettings
from poise.routing.rendezvous import rendezvous
from support.fleets import spec

RANDOM_SESSIONS = [Random(1).getrandbits(64) ^ index for index in range(8000)]
names = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), min_size=2, max_size=8, unique=True)
sessions = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=50)


def replicas_of(called: list[str]) -> list[Replica]:
    return [
        Replica(spec(name), slot, Condition(BreakerSettings(), HealthSettings())) for slot, name in enumerate(called)
    ]


def homes(given: list[int], replicas: list[Replica]) -> dict[int, str]:
    return {session: rendezvous(session, replicas).name for session in given}


@pytest.mark.parametrize("given", [RANDOM_SESSIONS, range(8000), range(0, 8000 << 40, 1 << 40)])
@pytest.mark.parametrize("called", [[f"r{index}" for index in range(8)], list("abcdefgh")])
def test_sessions_spread_evenly_even_if_their_hashes_are_poor(given: list[int], called: list[str]) -> None:
    shares = Counter(homes(list(given), replicas_of(called)).values())
    assert all(850 <= shares[name] <= 1150 for name in called), shares


@given(called=names, given=sessions, data=st.data())
def test_only_the_sessions_of_a_leaving_replica_move(called: list[str], given: list[int], data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from(called))
    before = homes(given, replicas_of(called))
    after = homes(given, replicas_of([name for name in called if name != leaving]))
    assert all(after[session] == home for session, home in before.items() if home != leaving)


def test_the_sessions_of_a_leaving_replica_spread_over_all_others() -> None:
    called = [f"r{index}" for index in range(8)]
    before = homes(RANDOM_SESSIONS, replicas_of(called))
    after = homes(RANDOM_SESSIONS, replicas_of(called[1:]))
    moved = Counter(after[session] for session, home in before.items() if home == "r0")
    assert all(100 <= moved[name] <= 190 for name in called[1:]), moved


@given(called=names, given=sessions, data=st.data())
def test_order_and_slots_do_not_matter(called: list[str], given: list[int], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(called))
    assert homes(given, replicas_of(called)) == homes(given, replicas_of(shuffled))


def test_homes_stay_the_same_between_releases() -> None:
    """Gateways of two releases stand side by side during an upgrade, and have to agree."""
    given = [0, 1, 2, 2**63, 2**64 - 1, 0x0123456789ABCDEF]
    assert list(homes(given, replicas_of(["a", "b", "c", "d"])).values()) == ["c", "b", "d", "b", "b", "b"]
