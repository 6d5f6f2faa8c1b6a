"""Why a replica may not be sent a request now, in words: for people, who are shown it; nothing is decided by it."""

from poise.core.replica import ReplicaState
from poise.fleet.replica import Replica
from poise.health import slow_start


def obstacle(replica: Replica) -> str | None:
    """What keeps requests away from `replica`, None if it is available: the first of what `Fleet` asks."""
    if replica.available:
        return None
    condition = replica.condition
    if condition.state is not ReplicaState.READY:
        return str(condition.state)
    if not replica.spared and not condition.breaker.admits:
        return f"breaker {condition.breaker.state}"
    if replica.max_concurrency is not None and replica.in_flight >= replica.max_concurrency:
        return "at its cap"
    if replica.max_tokens is not None and replica.held_tokens >= replica.max_tokens:
        return "at its cap of tokens"
    if replica.share < slow_start.FULL and replica.in_flight >= replica.slow_start_limit:
        return "slow start"
    return "KV usage over the throttle"
