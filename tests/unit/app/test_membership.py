"""What the configuration, the admin API and DNS say of the fleet, whoever says it first."""

from collections.abc import Collection
from typing import Any

import pytest

from poise.admin.control import NameTaken, NoSuchReplica
from poise.app.membership import Membership
from poise.core.errors import ConfigError
from poise.core.replica import ReplicaSpec, parse_replica_url
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import Fleet


def spec(name: str, url: str | None = None, **fields: Any) -> ReplicaSpec:
    return ReplicaSpec(name, parse_replica_url(url or f"http://{name}:8000"), **fields)


class Kept:
    """A membership with its fleet."""

    def __init__(self, *names: str) -> None:
        self.fleet = Fleet()
        self.addresses: dict[str, Collection[str]] = {}
        self.membership = Membership(self.fleet, self.addresses)
        self.membership.configure([spec(name) for name in names])

    @property
    def states(self) -> dict[str, str]:
        return {replica.name: str(replica.state) for replica in self.fleet if not replica.leaving}


def test_what_was_missed_is_made_good_by_the_next_comparison() -> None:
    kept = Kept("a", "b")
    kept.fleet.leave("b")
    kept.fleet.join(spec("stranger"))
    kept.fleet.drain("a")
    kept.membership.reconcile()
    assert kept.states == {"a": "ready", "b": "ready"}


def test_what_was_added_outlives_a_change_of_the_configuration_and_the_reverse() -> None:
    kept = Kept("a")
    assert kept.membership.add({"url": "http://x:1", "name": "x", "labels": {"bucket": "long"}}) == "x"
    assert kept.membership.add("http://y:1") == "a1"
    kept.membership.configure([spec("b")])
    assert kept.states.keys() == {"b", "x", "a1"}
    assert {r.name: str(r.spec.source) for r in kept.fleet} == {"b": "config", "x": "admin", "a1": "admin"}
    kept.membership.remove("x")
    assert kept.states.keys() == {"b", "a1"}


def test_a_configured_replica_that_was_removed_stays_away_until_the_configuration_changes_it() -> None:
    kept = Kept("a", "b")
    kept.membership.remove("a")
    kept.membership.configure([spec("a"), spec("b"), spec("c")])
    kept.membership.reconcile()
    assert kept.states.keys() == {"b", "c"}
    with pytest.raises(NoSuchReplica):
        kept.membership.drain("a")
    kept.membership.configure([spec("b"), spec("c")])
    kept.membership.configure([spec("a"), spec("b")])
    assert kept.states.keys() == {"a", "b"}
    kept.membership.remove("a")
    kept.membership.configure([spec("a", model="m"), spec("b")])
    assert kept.states.keys() == {"a", "b"}


def test_a_removed_name_can_be_given_anew() -> None:
    kept = Kept("a", "b")
    kept.membership.remove("a")
    kept.membership.add({"url": "http://elsewhere:1", "name": "a"})
    assert kept.states.keys() == {"a", "b"}
    kept.membership.configure([spec("a"), spec("b"), spec("c")])
    (a,) = [replica for replica in kept.fleet if replica.name == "a"]
    assert a.spec.address.host == "elsewhere", "the configuration says nothing new of it"


@pytest.mark.parametrize("entry", [{"url": "http://z:1", "name": "a"}, {"url": "http://a:8000"}, "http://a:8000"])
def test_a_name_or_an_address_is_there_once(entry: object) -> None:
    kept = Kept("a")
    with pytest.raises(NameTaken, match=r"there is a replica .* already"):
        kept.membership.add(entry)
    assert kept.states == {"a": "ready"}


def test_the_configuration_takes_the_place_of_what_was_added_under_its_name_or_address() -> None:
    kept = Kept("a")
    kept.membership.add({"url": "http://x:1", "name": "x"})
    kept.membership.add({"url": "http://y:1", "name": "y"})
    kept.membership.configure([spec("a"), spec("x", "http://elsewhere:1"), spec("z", "http://y:1")])
    assert {replica.name: replica.spec.address.host for replica in kept.fleet} == {
        "a": "a",
        "x": "elsewhere",
        "z": "y",
    }
    kept.membership.configure([spec("a")])
    assert kept.states.keys() == {"a"}, "what was added is forgotten, not hidden"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"url": "ftp://x"}, "url: replica url 'ftp://x' is not an http or https address"),
        ({"url": "http://x:1", "nmae": "x"}, "unknown key 'nmae', did you mean name"),
        ({"name": "x"}, "url is missing"),
        ({"url": "http://x:1", "gpu_metrics_url": "http://[/x"}, "gpu_metrics_url: is not the address of a page"),
        ([], r"what was given is \[\], should be keys and values"),
        ({"url": 1, "name": "no spaces"}, "2 settings are wrong"),
    ],
)
def test_an_entry_is_read_as_in_the_file(entry: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Kept("a").membership.add(entry)


def test_draining_is_kept_through_changes_and_forgotten_with_the_replica() -> None:
    kept = Kept("a", "b")
    kept.membership.drain("a")
    kept.membership.configure([spec("a", labels={"x": "y"}), spec("b")])
    assert kept.states == {"a": "draining", "b": "ready"}
    kept.membership.resume("a")
    assert kept.states == {"a": "ready", "b": "ready"}
    kept.membership.drain("a")
    kept.membership.configure([spec("b")])
    kept.membership.configure([spec("a"), spec("b")])
    assert kept.states == {"a": "ready", "b": "ready"}


def test_a_removed_replica_is_shown_until_its_last_request_has_ended() -> None:
    kept = Kept("a", "b")
    ticket = kept.fleet.dispatch(0, RequestFacts(), 0.0)
    kept.membership.remove("a")
    kept.membership.reconcile()
    assert [(r.name, str(r.state), r.in_flight) for r in kept.fleet] == [("a", "draining", 1), ("b", "ready", 0)]
    kept.fleet.settle(ticket, Outcome.COMPLETED, 1.0)
    assert kept.states == {"b": "ready"}


def test_replicas_come_and_go_with_the_addresses_of_their_name() -> None:
    kept = Kept()
    kept.membership.configure([spec("v", "http://vllm:8000", each_address=True), spec("other")])
    assert kept.states.keys() == {"other"}
    assert kept.membership.hosts == {"vllm", "other"}
    kept.addresses["vllm"] = ("10.0.0.1", "10.0.0.2")
    kept.membership.reconcile()
    assert kept.states.keys() == {"other", "v-10.0.0.1", "v-10.0.0.2"}
    first = kept.fleet.named("v-10.0.0.1")
    kept.membership.drain("v-10.0.0.2")
    kept.membership.remove("other")
    kept.addresses["vllm"] = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
    kept.membership.reconcile()
    assert kept.states == {"v-10.0.0.1": "ready", "v-10.0.0.2": "draining", "v-10.0.0.3": "ready"}
    assert kept.fleet.named("v-10.0.0.1") is first
    kept.membership.remove("v-10.0.0.3")
    kept.membership.drain("v")
    assert kept.states == {"v-10.0.0.1": "draining", "v-10.0.0.2": "draining"}
    kept.membership.resume("v")
    assert kept.states == {"v-10.0.0.1": "ready", "v-10.0.0.2": "draining"}
    kept.addresses["vllm"] = ("10.0.0.1",)
    kept.membership.reconcile()
    kept.addresses["vllm"] = ("10.0.0.2", "10.0.0.3")
    kept.membership.reconcile()
    assert kept.states == {"v-10.0.0.2": "ready", "v-10.0.0.3": "ready"}, "an address that returns is a new one"
    kept.membership.remove("v")
    assert kept.states == {}
