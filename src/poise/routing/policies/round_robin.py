"""Policy `round_robin`: the replica served longest ago."""

from collections.abc import Collection

from poise.core.decision import Decision, Send
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, none_left
from poise.routing.policy import FleetView


class RoundRobin:
    """Each replica in turn. The turn is read off the fleet's dispatches, so it survives replicas that come and go."""

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        return Send(min(left, key=lambda replica: replica.last_dispatch).slot, "in turn")
