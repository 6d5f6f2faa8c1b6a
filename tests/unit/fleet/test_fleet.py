"""The fleet's rules, one by one: membership, tickets, progress, restarts, staleness and availability."""

from dataclasses import replace

import pytest

from poise.core.errors import ConfigError
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import EXPECTED_OUTPUT_TOKENS, Fleet
from poise.fleet.replica import Replica
from poise.fleet.terms import WorstTerms

ASKED = RequestFacts(prompt_tokens=1300, output_tokens=200)


def _fleet(*names: str, **options: float) -> Fleet:
    fleet = Fleet(**options)
    for name in names:
        fleet.join(_spec(name))
    return fleet


def _spec(name: str, model: str | None = None) -> ReplicaSpec:
    return ReplicaSpec(name, parse_replica_url("http://h:1"), model=model)


def _read(fleet: Fleet, replica: Replica, now_s: float = 0.0, **figures: float | bool | None) -> None:
    fleet.scrape_began(replica)
    fleet.scraped(replica, LoadReading(**figures), now_s)  # type: ignore[arg-type]


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ConfigError, match="two replicas are named 'a'"):
        _fleet("a", "a")


def test_slots_are_stable_and_reused_from_the_lowest() -> None:
    fleet = _fleet("a", "b", "c")
    fleet.leave("a")
    assert [replica.slot for replica in fleet] == [1, 2]
    with pytest.raises(LookupError, match="slot 0 is empty"):
        fleet.at(0)
    assert fleet.join(_spec("d")).slot == 0
    assert [replica.name for replica in fleet] == ["d", "b", "c"]


def test_a_successor_is_never_credited_with_its_predecessors_tickets() -> None:
    fleet = _fleet("a")
    old = fleet.dispatch(0, ASKED, 0.0)
    fleet.leave("a")
    new = fleet.join(_spec("a"))
    fleet.dispatch(new.slot, ASKED, 0.0)
    fleet.first_output(old, 1.0)
    fleet.settle(old, Outcome.COMPLETED, 2.0)
    assert (new.in_flight, new.prefill_tokens, new.since_poll.tokens, new.condition.progress_at_s) == (
        1,
        1300,
        1500,
        None,
    )
    assert not old.replica.available


def test_a_replica_that_leaves_keeps_its_slot_until_its_last_request_has_ended() -> None:
    fleet = _fleet("a", "b")
    old, other = fleet
    tickets = [fleet.dispatch(0, ASKED, 0.0) for _ in range(2)]
    fleet.leave("a")
    new = fleet.join(_spec("a"))
    assert (old.state, new.slot, fleet.named("a"), len(fleet)) == (ReplicaState.DRAINING, 2, new, 2)
    assert list(fleet) == [old, other, new], "still watched, so that its requests are not given up"
    assert list(fleet.pool(None).replicas) == [other, new]
    assert fleet.by_name() == {"b": other, "a": new}
    fleet.settle(tickets[0], Outcome.COMPLETED, 1.0)
    assert fleet.holds(old)
    fleet.settle(tickets[1], Outcome.FAILED, 1.0)
    assert not fleet.holds(old)
    assert list(fleet) == [other, new]


def test_a_drained_replica_takes_nothing_new_until_it_resumes() -> None:
    fleet = _fleet("a", "b")
    a, b = fleet
    ticket = fleet.dispatch(0, ASKED, 0.0)
    fleet.drain("a")
    assert (a.state, a.available, list(fleet.pool(None).replicas)) == (ReplicaState.DRAINING, False, [b])
    _read(fleet, a, running=1.0, asleep=False)
    fleet.settle(ticket, Outcome.COMPLETED, 1.0)
    assert (a.state, a.available, fleet.named("a")) == (ReplicaState.DRAINING, False, a), "it stays, empty"
    fleet.resume("a")
    assert (a.state, a.available, list(fleet.pool(None).replicas)) == (ReplicaState.READY, True, [a, b])


def test_a_model_whose_replicas_all_drain_is_known_and_is_asked_of_nobody_else() -> None:
    fleet = Fleet()
    fleet.join(_spec("a", model="m"))
    fleet.join(_spec("b", model="n"))
    fleet.drain("a")
    assert list(fleet.pool("m").replicas) == []
    assert list(fleet.models()) == ["m", "n"]
    successor = fleet.join(_spec("c"))
    assert list(fleet.pool("m").replicas) == [successor], "which may serve it: nobody has asked it yet"


def test_a_change_keeps_the_ledger() -> None:
    fleet = Fleet()
    a = fleet.join(_spec("a"))
    fleet.serves(a, ("m",))
    fleet.dispatch(0, ASKED, 0.0)
    fleet.change(replace(_spec("a", model="n"), labels={"bucket": "long"}))
    assert (fleet.named("a"), a.in_flight, a.models, a.spec.labels) == (a, 1, ("n",), {"bucket": "long"})
    assert list(fleet.pool("n").replicas) == [a]
    fleet.change(_spec("a"))
    assert a.models is None, "asked for anew"


def test_where_a_name_leads_is_said_once() -> None:
    fleet = _fleet("a")
    (a,) = fleet
    fleet.locate("a", ("10.0.0.1",))
    before = fleet.generation
    fleet.locate("a", ("10.0.0.1",))
    assert (a.hosts, fleet.generation) == (("10.0.0.1",), before)
    fleet.locate("a", ())
    assert (a.hosts, fleet.generation) == ((), before + 1), "watchers learn of it by the generation"


def test_a_ticket_settles_once_and_its_first_output_counts_once() -> None:
    fleet = _fleet("a")
    ticket = fleet.dispatch(0, ASKED, 0.0)
    for now_s in (1.0, 2.0):
        fleet.first_output(ticket, now_s)
    assert (fleet.at(0).prefill_tokens, ticket.first_output_at_s) == (0, 1.0)
    fleet.settle(ticket, Outcome.COMPLETED, 3.0)
    fleet.first_output(ticket, 4.0)
    with pytest.raises(AssertionError, match="settled twice"):
        fleet.settle(ticket, Outcome.COMPLETED, 5.0)
    assert fleet.at(0).prefill_tokens == 0


def test_a_burst_between_two_polls_is_seen_at_once() -> None:
    fleet = _fleet("a", "b")
    a, b = fleet
    for replica in fleet:
        _read(fleet, replica, kv_usage_ratio=0.5, waiting=2.0, kv_capacity_tokens=15_000)
    fleet.dispatch(a.slot, ASKED, 0.1)
    assert (a.kv, a.queue) == (pytest.approx(0.6), 3)
    assert (b.kv, b.queue) == (0.5, 2)


def test_a_scrape_on_its_way_does_not_hide_what_was_dispatched_after_it_began() -> None:
    fleet = _fleet("a")
    a = fleet.at(0)
    fleet.dispatch(0, ASKED, 0.0)
    fleet.scrape_began(a)
    fleet.dispatch(0, ASKED, 0.1)
    fleet.scraped(a, LoadReading(waiting=1.0), 0.2)
    assert a.queue == 2, "one that the engine reported, and the one it could not know of"


def test_a_failed_scrape_drops_no_charge() -> None:
    fleet = _fleet("a")
    a = fleet.at(0)
    _read(fleet, a, waiting=0.0)
    fleet.dispatch(0, ASKED, 0.0)
    fleet.scrape_began(a)
    fleet.scrape_failed(a, "no answer")
    assert (a.queue, a.failed_scrapes, a.scrape_error) == (1, 1, "no answer")
    _read(fleet, a, waiting=1.0)
    assert (a.queue, a.failed_scrapes, a.scrape_error) == (1, 0, None)


def test_output_tokens_are_progress_and_a_fallen_counter_is_a_restart_even_after_silence() -> None:
    fleet = _fleet("a", stale_s=2.0)
    a = fleet.at(0)
    for now_s, tokens in ((0.0, 100.0), (1.0, 100.0)):
        _read(fleet, a, now_s, generation_tokens=tokens)
    assert (a.condition.progress_at_s, a.restarts) == (None, 0)
    _read(fleet, a, 2.0, generation_tokens=101.0)
    assert (a.condition.progress_at_s, a.restarts) == (2.0, 0)
    fleet.advance(60.0)
    assert a.reading is None
    _read(fleet, a, 60.0, generation_tokens=None)
    _read(fleet, a, 61.0, generation_tokens=0.0)
    assert (a.condition.progress_at_s, a.restarts) == (2.0, 1)


def test_a_reading_is_believed_until_it_is_stale() -> None:
    fleet = _fleet("a", "b", stale_s=2.0)
    a, b = fleet
    _read(fleet, a, 0.0, kv_usage_ratio=0.2, waiting=1.0)
    _read(fleet, b, 1.0, kv_usage_ratio=0.7, waiting=9.0)
    fleet.advance(2.0)
    assert a.kv == 0.2
    fleet.advance(2.5)
    assert (a.reading, a.kv, a.queue) == (None, 0.7, 9.0), "unknown counts as the worst of its peers"
    fleet.advance(9.0)
    assert (a.kv, b.kv, fleet.known_terms) == (0.0, 0.0, 0), "what nobody knows is dropped for all"


def test_request_times_count_though_no_metrics_can_be_read() -> None:
    fleet = _fleet("a", "b")
    a, b = fleet
    for replica, seconds in ((a, 1.0), (b, 3.0), (b, 5.0)):
        fleet.settle(fleet.dispatch(replica.slot, ASKED, 0.0), Outcome.COMPLETED, seconds)
    fleet.settle(fleet.dispatch(a.slot, ASKED, 0.0), Outcome.FAILED, 99.0)
    fleet.advance(5.0)
    assert (a.request_time_s, b.request_time_s) == (1.0, pytest.approx(3.2))


def test_throttle_cap_and_sleep_decide_who_is_available() -> None:
    fleet = _fleet("a", kv_throttle_ratio=0.85)
    a = fleet.at(0)
    _read(fleet, a, kv_usage_ratio=0.8, kv_capacity_tokens=15_000)
    assert a.available
    ticket = fleet.dispatch(0, ASKED, 0.0)
    assert not a.available, "0.8 and the tenth that was just sent there"
    fleet.settle(ticket, Outcome.CANCELLED, 0.1)
    assert a.available
    a.max_concurrency = 1
    ticket = fleet.dispatch(0, RequestFacts(), 0.0)
    assert not a.available
    fleet.settle(ticket, Outcome.CANCELLED, 0.1)
    _read(fleet, a, asleep=True)
    assert (a.state, a.available) == (ReplicaState.ASLEEP, False)
    _read(fleet, a, asleep=None)
    assert a.state is ReplicaState.ASLEEP, "saying nothing of sleep is not waking up"
    _read(fleet, a, asleep=False)
    assert (a.state, a.available) == (ReplicaState.READY, True)


def test_unknown_kv_usage_does_not_throttle() -> None:
    fleet = _fleet("a", "b")
    a, b = fleet
    _read(fleet, a, kv_usage_ratio=0.99)
    assert (a.available, b.available, b.kv) == (False, True, 0.99)


def test_pools_follow_models_and_membership() -> None:
    fleet = Fleet()
    a, b = fleet.join(_spec("a")), fleet.join(_spec("b", model="m"))
    everyone = [a, b]
    assert list(fleet.pool("m").replicas) == [b]
    assert list(fleet.pool("x").replicas) == [a], "its models are not known yet: it may have any"
    assert list(fleet.pool(None).replicas) == everyone
    before = fleet.generation
    fleet.serves(a, ("m", "n"))
    fleet.serves(b, ("other",))
    assert fleet.generation == before + 1, "the configuration's model is not overruled"
    assert (list(fleet.pool("m").replicas), list(fleet.models())) == (everyone, ["m", "n"])
    assert list(fleet.pool("x").replicas) == []
    fleet.serves(a, ("m", "n"))
    assert fleet.generation == before + 1
    fleet.leave("b")
    assert list(fleet.pool("m").replicas) == [a]


def test_worst_terms_follow_a_falling_maximum() -> None:
    worst = WorstTerms()
    terms = [(0.9, 3.0, None, None), (0.5, 3.0, None, 1.0)]
    worst.rebuild(terms)
    assert (worst.values, worst.known) == ([0.9, 3.0, None, 1.0], 1 | 2 | 8)
    old, terms[0] = terms[0], (0.1, 3.0, None, None)
    assert worst.replace(old, terms[0], terms)
    assert worst.values == [0.5, 3.0, None, 1.0]
    old, terms[0] = terms[0], (0.2, 2.0, None, None)
    assert not worst.replace(old, terms[0], terms)
    worst.rebuild([])
    assert (worst.values, worst.known) == ([None] * 4, 0)


def test_a_limit_above_what_is_to_be_expected_is_not_charged() -> None:
    fleet = Fleet()
    replica = fleet.join(_spec("a"))
    fleet.dispatch(0, RequestFacts(prompt_tokens=10, output_tokens=1_000_000), 0.0)
    assert replica.since_poll.tokens == 10 + EXPECTED_OUTPUT_TOKENS
