"""Policy `load_score`: the least load score."""

from collections.abc import Collection
from dataclasses import dataclass, field

from poise.core.decision import Decision
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, least_loaded, none_left, weights_by_known_terms
from poise.routing.load_score import LoadWeights
from poise.routing.policy import FleetView


@dataclass(frozen=True, slots=True)
class LoadScoreSettings:
    """`weights` of the four terms of the score."""

    weights: LoadWeights = field(default_factory=LoadWeights)


class LoadScore:
    """Follows every replica's load, and nothing else: conversations move about."""

    def __init__(self, settings: LoadScoreSettings) -> None:
        self._weights = weights_by_known_terms(settings.weights)

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        return least_loaded(left, self._weights[fleet.known_terms], "least load")
