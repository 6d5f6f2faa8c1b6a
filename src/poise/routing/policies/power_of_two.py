"""Policy `power_of_two`: the one with fewer requests in flight out of two drawn at random."""

from collections.abc import Collection
from random import Random

from poise.core.decision import Decision, Send
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, fewest_requests, none_left
from poise.routing.policy import FleetView


class PowerOfTwo:
    """Draws from `random`, whose state is all that a decision changes."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        drawn = self._random.sample(left, min(2, len(left)))
        terms = [(replica.slot, float(replica.in_flight)) for replica in drawn]
        return Send(min(drawn, key=fewest_requests).slot, "less busy", terms)
