"""Whatever the fleet is and whatever is wanted, one plan makes the one the other, and a second one does nothing."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from poise.core.replica import ReplicaSpec, ReplicaState, Source, parse_replica_url
from poise.core.request import RequestFacts
from poise.fleet.fleet import Fleet
from poise.fleet.reconcile import Action, Step, members, plan

NAMES = "abcd"
SPECS = st.dictionaries(
    st.sampled_from(NAMES),
    st.tuples(st.integers(1, 3), st.sampled_from([None, "m"]), st.sampled_from(["short", "long"])),
).map(
    lambda found: {
        name: ReplicaSpec(name, parse_replica_url(f"http://h:{port}"), model=model, labels={"bucket": label})
        for name, (port, model, label) in found.items()
    }
)
DRAINED = st.sets(st.sampled_from(NAMES))


def bring_about(fleet: Fleet, wanted: dict[str, ReplicaSpec], drained: set[str]) -> list[Action]:
    actions = plan(wanted, drained, fleet)
    for step, spec in ((action.step, action.spec) for action in actions):
        if step is Step.JOIN:
            fleet.join(spec)
        elif step is Step.CHANGE:
            fleet.change(spec)
        else:
            {Step.LEAVE: fleet.leave, Step.DRAIN: fleet.drain, Step.RESUME: fleet.resume}[step](spec.name)
    return actions


@given(st.lists(st.tuples(SPECS, DRAINED), min_size=1, max_size=5), st.data())
def test_one_plan_brings_about_what_is_wanted_and_keeps_what_can_be_kept(
    states: list[tuple[dict[str, ReplicaSpec], set[str]]], data: st.DataObject
) -> None:
    fleet = Fleet()
    for wanted, drained in states:
        before = {replica.name: replica for replica in fleet if not replica.leaving}
        bring_about(fleet, wanted, drained)
        there = {replica.name: replica for replica in fleet if not replica.leaving}
        assert {name: replica.spec for name, replica in there.items()} == wanted
        assert {name for name, replica in there.items() if replica.condition.taken_out} == (drained & wanted.keys())
        for name, replica in before.items():
            kept = name in wanted and wanted[name].address == replica.spec.address
            assert (there.get(name) is replica) == kept
        assert plan(wanted, drained, fleet) == []
        for replica in there.values():  # some that leave next time are busy
            if replica.state is ReplicaState.READY and data.draw(st.booleans()):
                fleet.dispatch(replica.slot, RequestFacts(), 0.0)


def test_a_name_that_stands_for_several_addresses_is_a_replica_for_each() -> None:
    spec = ReplicaSpec("v", parse_replica_url("http://vllm:8000"), labels={"bucket": "long"}, each_address=True)
    assert members(spec, {}) == []
    two = members(spec, {"vllm": ("10.0.0.2", "10.0.0.1"), "other": ("10.9.9.9",)})
    assert [member.name for member in two] == ["v-10.0.0.1", "v-10.0.0.2"]
    assert [member.address.url for member in two] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert {(m.address.authority, m.labels["bucket"], m.source, m.each_address) for m in two} == {
        ("vllm:8000", "long", Source.DNS, False)
    }
    plain = replace(spec, each_address=False)
    assert members(plain, {"vllm": ("10.0.0.1", "10.0.0.2")}) == [plain]


def test_a_host_with_addresses_of_both_kinds_is_not_twice_as_many_replicas() -> None:
    spec = ReplicaSpec("v", parse_replica_url("http://vllm:8000"), each_address=True)
    assert [m.name for m in members(spec, {"vllm": ("fd00::1", "10.0.0.1")})] == ["v-10.0.0.1"]
    (six,) = members(spec, {"vllm": ("fd00::1",)})
    assert (six.name, six.address.url) == ("v-fd00--1", "http://[fd00::1]:8000")
