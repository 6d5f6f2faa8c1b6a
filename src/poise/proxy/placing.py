"""Asks the policy where a request goes, and says in the gateway's terms what comes of it."""

from time import monotonic
from typing import TYPE_CHECKING

from poise.core.decision import Send, Wait
from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.fleet.fleet import expected_tokens

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.proxy.data_path import DataPath
    from poise.proxy.trail import Trail

NO_REPLICA = Refusal(503, "no_replica", "no replica can take the request now", "gateway", retry_after_s=1)
POLICY_FAILED = Refusal(500, "policy_failed", "the placement policy failed; the gateway's log says how", "gateway")


class Placement:
    """The replica that a request is to be sent to, and why."""

    __slots__ = ("reason", "replica")

    def __init__(self, replica: "Replica", reason: str) -> None:
        self.replica = replica
        self.reason = reason


def place(
    path: "DataPath", facts: RequestFacts, tried: "tuple[Replica, ...]", trail: "Trail | None"
) -> Placement | Refusal | None:
    """Where the request goes, None if it has to wait, a refusal if waiting would not help."""
    fleet = path.fleet
    began_s = monotonic()
    pool = fleet.pool(facts.model)
    try:
        small = pool.too_small_for(expected_tokens(facts)) if fleet.counts_tokens else []
        slots = small + [replica.slot for replica in tried if replica in pool.replicas] if small or tried else ()
        decision = path.policy.choose(facts, pool, began_s, slots)
        placed = Placement(fleet.at(decision.slot), decision.reason) if isinstance(decision, Send) else None
    except Exception as error:  # noqa: BLE001 - a user's own policy may raise anything; only this request suffers
        path.report("the policy failed", error)
        return POLICY_FAILED
    now_s = monotonic()
    path.counters.decision_s.observe(now_s - began_s)
    if trail is not None:
        trail.decided(pool.replicas, decision, slots, began_s, now_s)
    if placed is not None:
        return placed
    may_wait = may_be_tried(path, facts, tried) if tried else not pool.hopeless
    return None if may_wait and (small or isinstance(decision, Wait)) else NO_REPLICA


def may_be_tried(path: "DataPath", facts: RequestFacts, tried: "tuple[Replica, ...]") -> bool:
    """Whether another replica can take the request, now or when it has room again."""
    pool = path.fleet.pool(facts.model)
    return any(replica not in tried and (replica.available or replica.full) for replica in pool.replicas)
