"""Policy `random`: any replica, all equally likely."""

from collections.abc import Collection
from random import Random

from poise.core.decision import Decision, Send
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, none_left
from poise.routing.policy import FleetView


class RandomChoice:
    """Draws from `random`, whose state is all that a decision changes."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        return Send(self._random.choice(left).slot, "random")
