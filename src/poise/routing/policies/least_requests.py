"""Policy `least_requests`: the fewest requests in flight."""

from collections.abc import Collection

from poise.core.decision import Decision, Send
from poise.core.request import RequestFacts
from poise.routing.choice import candidates, fewest_requests, none_left
from poise.routing.policy import FleetView


class LeastRequests:
    """Compares this gateway's own counts, ties to the replica served longest ago."""

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """See `Policy.choose`."""
        left = candidates(fleet, tried)
        if not left:
            return none_left(fleet, now_s, tried)
        terms = [(replica.slot, float(replica.in_flight)) for replica in left]
        return Send(min(left, key=fewest_requests).slot, "fewest requests", terms)
