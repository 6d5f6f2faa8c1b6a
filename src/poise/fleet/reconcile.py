"""What has to be done to a fleet so that it is what is wanted: compared whole, so that nothing missed stays missed."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from poise.core.replica import ReplicaSpec, Source
from poise.fleet.replica import Replica


class Step(StrEnum):
    """What can be done to one replica."""

    LEAVE = "leaves"
    JOIN = "joins"
    CHANGE = "changes"
    DRAIN = "drains"
    RESUME = "resumes"


@dataclass(frozen=True, slots=True)
class Action:
    """One step, and whom it is about; `spec` is the one that is wanted, or for a leave the one there was."""

    step: Step
    spec: ReplicaSpec


def plan(wanted: Mapping[str, ReplicaSpec], drained: Collection[str], present: Iterable[Replica]) -> list[Action]:
    """The actions that make the replicas `present` (those that leave already aside) those that are `wanted`, by name,
    with the ones named in `drained` draining. To be taken in this order; done again, there are none.

    A replica that would be reached in another way is another replica: it leaves, and one of the same name joins.
    """
    there = {replica.name: replica for replica in present if not replica.leaving}
    leaving = [
        replica.spec
        for name, replica in there.items()
        if name not in wanted or not wanted[name].reached_as(replica.spec)
    ]
    gone = {spec.name for spec in leaving}
    actions = [Action(Step.LEAVE, spec) for spec in leaving]
    for name, spec in wanted.items():
        replica = None if name in gone else there.get(name)
        if replica is None:
            actions.append(Action(Step.JOIN, spec))
        elif replica.spec != spec:
            actions.append(Action(Step.CHANGE, spec))
        drains = replica is not None and replica.condition.taken_out  # one that drains by itself is none of ours
        if drains != (name in drained):
            actions.append(Action(Step.RESUME if drains else Step.DRAIN, spec))
    return actions


def members(spec: ReplicaSpec, addresses: Mapping[str, Collection[str]]) -> list[ReplicaSpec]:
    """The replicas that `spec` stands for: itself, or one for each of its host's `addresses`, by host name.

    A host with IPv4 and IPv6 addresses is not two: only the IPv4 ones count then.
    """
    if not spec.each_address:
        return [spec]
    found = addresses.get(spec.address.host, ())
    chosen = [ip for ip in found if ":" not in ip] or found
    return [
        replace(
            spec,
            name=f"{spec.name}-{ip.replace(':', '-')}",
            address=replace(spec.address, ip=ip),
            source=Source.DNS,
            each_address=False,
        )
        for ip in sorted(chosen)
    ]
