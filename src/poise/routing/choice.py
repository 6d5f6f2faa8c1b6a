"""Steps that placement rules share: who can be chosen, the least loaded of them, and what to say if there is nobody."""

from collections.abc import Collection, Sequence

from poise.core.decision import Refuse, Send, Wait
from poise.routing.load_score import LoadWeights, effective_weights, load_score
from poise.routing.policy import FleetView, ReplicaView

ASK_AGAIN_S = 0.1
"""How long a request waits before it asks again, should no change of the fleet wake it earlier."""
KNOWN_TERM_MASKS = 16
"""Number of values of `FleetView.known_terms`: four terms, known or not."""
EQUAL_SCORES = 1e-9
"""Scores this close are equal: charges that come and go leave the last bits of a float different."""


def candidates(fleet: FleetView, tried: Collection[int]) -> list[ReplicaView]:
    """The replicas that are available and not yet tried, in slot order."""
    return [replica for replica in fleet.replicas if replica.available and replica.slot not in tried]


def none_left(fleet: FleetView, now_s: float, tried: Collection[int]) -> Wait | Refuse:
    """The answer when there are no candidates: wait for an untried replica if there is one."""
    if any(replica.slot not in tried for replica in fleet.replicas):
        return Wait(until_s=now_s + ASK_AGAIN_S, reason="no replica available")
    return Refuse("no replica left")


def fewest_requests(replica: ReplicaView) -> tuple[int, int]:
    """Sort key: fewest in flight first, then the one served longest ago, so that equal replicas share evenly."""
    return replica.in_flight, replica.last_dispatch


def least_loaded(replicas: Sequence[ReplicaView], weights: LoadWeights | None, reason: str) -> Send:
    """Send to the least load score, ties as in `fewest_requests`; the terms are all scores. `replicas` is not empty."""
    terms = [(replica.slot, load_score(replica, weights)) for replica in replicas]
    limit = min(score for _, score in terms) + EQUAL_SCORES
    tied = [replica for replica, (_, score) in zip(replicas, terms, strict=True) if score <= limit]
    return Send(min(tied, key=fewest_requests).slot, reason, terms)


def weights_by_known_terms(weights: LoadWeights) -> tuple[LoadWeights | None, ...]:
    """`effective_weights` for every value of `FleetView.known_terms`, which is the index."""
    return tuple(effective_weights(weights, known_terms) for known_terms in range(KNOWN_TERM_MASKS))
