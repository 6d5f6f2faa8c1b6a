"""Real fleets in a given state, for tests of what decides over them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.core.request import RequestFacts
from poise.fleet.fleet import Fleet
from poise.fleet.replica import Replica

REQUEST = RequestFacts(prompt_tokens=100, output_tokens=100)


@dataclass(frozen=True)
class Load:
    """What one replica is given: the three polled terms, requests in flight, and whether it may be chosen."""

    kv: float | None = None
    waiting: float | None = None
    gpu: float | None = None
    in_flight: int = 0
    available: bool = True


def ratios() -> st.SearchStrategy[float]:
    """0..1, in hundredths so that ties are met."""
    return st.integers(0, 100).map(lambda hundredths: hundredths / 100)


def loads() -> st.SearchStrategy[Load]:
    """Any load, with any of the polled terms missing."""
    return st.builds(
        Load,
        kv=st.none() | ratios(),
        waiting=st.none() | st.integers(0, 40).map(float),
        gpu=st.none() | ratios(),
        in_flight=st.integers(0, 3),
        available=st.booleans(),
    )


def spec(name: str) -> ReplicaSpec:
    """A replica called `name` at an address that nothing listens on."""
    return ReplicaSpec(name, parse_replica_url("http://127.0.0.1:1"))


def fleet_of(given: Sequence[Load], names: Sequence[str] | None = None) -> Fleet:
    """A fleet with one replica for each load, called `r0`, `r1`, ... unless named."""
    fleet = Fleet()
    for index, load in enumerate(given):
        replica = fleet.join(spec(names[index] if names else f"r{index}"))
        for _ in range(load.in_flight):
            fleet.dispatch(replica.slot, REQUEST, 0.0)
        fleet.scrape_began(replica)
        fleet.scraped(replica, LoadReading(
            waiting=load.waiting, kv_usage_ratio=load.kv, gpu_utilisation_ratio=load.gpu, kv_capacity_tokens=100_000,
        ), 0.0)  # fmt: skip
    for replica, load in zip(fleet, given, strict=True):
        replica.available = replica.available and load.available
    return fleet


def serve_each_once(fleet: Fleet, order: Iterable[int]) -> None:
    """One request for each slot of `order`, left in flight, so that no two replicas were served last."""
    for slot in order:
        available = fleet.at(slot).available
        fleet.dispatch(slot, REQUEST, 0.0)
        fleet.at(slot).available = available


def everything_in(replica: Replica) -> dict[str, object]:
    """All state of `replica`, to compare before and after."""
    state = {name: getattr(replica, name) for name in Replica.__slots__}
    state["outcomes"] = dict(replica.outcomes)
    state["since_poll"] = {name: getattr(replica.since_poll, name) for name in replica.since_poll.__slots__}
    return state
