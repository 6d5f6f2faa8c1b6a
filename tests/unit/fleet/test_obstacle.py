"""What is said of a replica that may not be sent a request names what really keeps requests away."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from poise.core.reading import LoadReading
from poise.core.request import Outcome
from poise.fleet.fleet import Fleet
from poise.fleet.obstacle import obstacle
from poise.fleet.replica import Replica
from poise.health.breaker import Sign
from support.fleets import REQUEST, spec


def read(fleet: Fleet, replica: Replica, **reading: float) -> None:
    fleet.scrape_began(replica)
    fleet.scraped(replica, LoadReading(**reading), 0.0)  # type: ignore[arg-type]


def fill(fleet: Fleet, replica: Replica) -> None:
    fleet.change(replace(replica.spec, max_concurrency=1))
    fleet.dispatch(replica.slot, REQUEST, 0.0)


def fill_with_tokens(fleet: Fleet, replica: Replica) -> None:
    fleet.change(replace(replica.spec, max_concurrency="auto"))
    read(fleet, replica, kv_capacity_tokens=250)
    fleet.dispatch(replica.slot, REQUEST, 0.0)


def fail(fleet: Fleet, replica: Replica) -> None:
    for _ in range(20):
        fleet.settle(fleet.dispatch(replica.slot, REQUEST, 0.0), Outcome.FAILED, 1.0, sign=Sign.FAILED)


CAUSES: dict[str, Callable[[Fleet, Replica], None]] = {
    "asleep": lambda fleet, replica: read(fleet, replica, asleep=True),
    "draining": lambda fleet, replica: fleet.drain(replica.name),
    "at its cap": fill,
    "at its cap of tokens": fill_with_tokens,
    "breaker open": fail,
    "KV usage over the throttle": lambda fleet, replica: read(fleet, replica, kv_usage_ratio=0.86),
}


@pytest.mark.parametrize("words", CAUSES)
def test_the_cause_is_named_and_none_while_there_is_none(words: str) -> None:
    fleet = Fleet()
    replica = fleet.join(spec("ill"))
    fleet.join(spec("well"))
    assert obstacle(replica) is None
    CAUSES[words](fleet, replica)
    assert not replica.available
    assert obstacle(replica) == words
