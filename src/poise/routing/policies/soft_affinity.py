"""Policy `soft_affinity`: a session's home while it has headroom, else the least load score."""

from collections.abc import Collection
from dataclasses import dataclass, field

from poise.core.decision import Decision, Send
from poise.core.errors import ConfigError
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, least_loaded, none_left, weights_by_known_terms
from poise.routing.load_score import LoadWeights, load_score
from poise.routing.policy import FleetView
from poise.routing.rendezvous import rendezvous


@dataclass(frozen=True, slots=True)
class SoftAffinitySettings:
    """`affinity_threshold`: load score from which a session is sent away from home; 0 never keeps it there.

    `weights` of the four terms of the score.
    """

    affinity_threshold: float = 0.7
    weights: LoadWeights = field(default_factory=LoadWeights)

    def __post_init__(self) -> None:
        if not self.affinity_threshold >= 0:
            raise ConfigError(
                f"affinity_threshold is {self.affinity_threshold}", hint="it is a load score: 0 or more, usually 0.7"
            )


class SoftAffinity:
    """Keeps conversations where their KV cache is for as long as the load there allows; nobody is bound to a replica.

    The home is taken over all replicas of the view, available or not, so that sessions come back after a restart.
    """

    def __init__(self, settings: SoftAffinitySettings) -> None:
        self._threshold = settings.affinity_threshold
        self._weights = weights_by_known_terms(settings.weights)

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        replicas = fleet.replicas
        weights = self._weights[fleet.known_terms]
        session = request.session
        if session is not None and replicas:
            home = rendezvous(session, replicas)
            if home.available and home.slot not in tried:
                score = load_score(home, weights)
                if score < self._threshold:
                    return Send(home.slot, "home", ((home.slot, score),))
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        return least_loaded(left, weights, "balanced" if session is None else "spill")
