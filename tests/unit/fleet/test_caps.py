"""Caps in requests and in tokens, and who is told when there may be room again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.core.reading import LoadReading
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet, expected_tokens
from poise.fleet.replica import AUTO_CAP_RATIO, Replica
from support.fleets import spec

CAPACITY_TOKENS = 10_000
MOST_TOKENS = AUTO_CAP_RATIO * CAPACITY_TOKENS


def capped(most: object) -> tuple[Fleet, Replica]:
    fleet = Fleet()
    return fleet, fleet.join(replace(spec("a"), max_concurrency=most))


def scraped(fleet: Fleet, replica: Replica, now_s: float = 0.0, **figures: float) -> None:
    fleet.scrape_began(replica)
    fleet.scraped(replica, LoadReading(**figures), now_s)  # type: ignore[arg-type]


def fits(fleet: Fleet, replica: Replica, facts: RequestFacts) -> bool:
    """Whether the fleet would let a policy send the request there."""
    return replica.available and replica.slot not in fleet.pool(None).too_small_for(expected_tokens(facts))


def test_a_number_is_the_most_requests_at_once() -> None:
    fleet, replica = capped(2)
    tickets = []
    for _ in range(2):
        assert replica.available and not replica.full
        tickets.append(fleet.dispatch(0, RequestFacts(), 0.0))
    assert replica.full and not replica.available
    fleet.settle(tickets[0], Outcome.COMPLETED, 1.0)
    assert replica.available and not replica.full


@given(requests=st.lists(st.tuples(st.integers(0, 9000), st.none() | st.integers(1, 500), st.booleans()), max_size=30))
def test_auto_keeps_tokens_within_the_share_or_lets_one_through(
    requests: list[tuple[int, int | None, bool]],
) -> None:
    fleet, replica = capped("auto")
    scraped(fleet, replica, kv_capacity_tokens=CAPACITY_TOKENS)
    running = []
    for prompt, output, end_one in requests:
        facts = RequestFacts(prompt_tokens=prompt, output_tokens=output)
        held = sum(ticket.tokens for ticket in running)
        assert replica.held_tokens == held
        expected = not running or (held + expected_tokens(facts) <= MOST_TOKENS and held < MOST_TOKENS)
        assert fits(fleet, replica, facts) is expected
        if expected:
            running.append(fleet.dispatch(0, facts, 0.0))
        if end_one and running:
            fleet.settle(running.pop(0), Outcome.COMPLETED, 1.0)
    for ticket in running:
        fleet.settle(ticket, Outcome.CANCELLED, 1.0)
    assert replica.held_tokens == 0 and replica.available


def test_unknown_capacity_is_no_cap_and_a_known_one_outlives_its_reading() -> None:
    fleet, replica = capped("auto")
    huge = RequestFacts(prompt_tokens=10**6)
    for _ in range(3):
        fleet.dispatch(0, huge, 0.0)
    assert fits(fleet, replica, huge) and not fleet.counts_tokens
    scraped(fleet, replica, kv_capacity_tokens=CAPACITY_TOKENS)
    assert replica.full and fleet.counts_tokens
    fleet.advance(100.0)
    assert replica.reading is None and replica.full, "the cache has not grown"
    scraped(fleet, replica, 101.0, kv_usage_ratio=0.1)
    assert replica.full


def test_a_changed_cap_counts_at_once() -> None:
    fleet, replica = capped(None)
    fleet.dispatch(0, RequestFacts(), 0.0)
    for most, available in ((1, False), (2, True), (None, True)):
        fleet.change(replace(replica.spec, max_concurrency=most))
        assert replica.available is available


@pytest.mark.parametrize("most", [1, "auto", None])
def test_whoever_waits_is_told_of_everything_that_may_have_made_room(most: object) -> None:
    fleet, replica = capped(most)
    told: list[bool] = []

    def on_room() -> None:
        told.append(replica.available)

    def tells() -> bool:
        seen, told[:] = list(told), []
        return True in seen

    scraped(fleet, replica, kv_capacity_tokens=CAPACITY_TOKENS, kv_usage_ratio=0.9)
    fleet.on_room = on_room
    scraped(fleet, replica, kv_capacity_tokens=CAPACITY_TOKENS, kv_usage_ratio=0.5)
    assert tells(), "the KV cache is emptier"
    ticket = fleet.dispatch(0, RequestFacts(prompt_tokens=CAPACITY_TOKENS), 0.0)
    told.clear()
    fleet.settle(ticket, Outcome.COMPLETED, 1.0)
    assert tells(), "a request has ended"
    fleet.drain("a")
    told.clear()
    fleet.resume("a")
    assert tells(), "it takes requests again"
    fleet.join(spec("b"))
    assert tells(), "another has joined"
