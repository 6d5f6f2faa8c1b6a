"""The load score of the practitioners' account: a weighted sum of KV usage, queue, GPU utilisation and request time."""

from dataclasses import astuple, dataclass, fields
from functools import lru_cache

from poise.core.errors import ConfigError
from poise.routing.policy import ReplicaView

KV, QUEUE, GPU, TIME = 1, 2, 4, 8
"""Bits of `FleetView.known_terms`."""

QUEUE_FULL = 20.0
"""Waiting requests that count as a full queue."""
TIME_FULL_S = 30.0
"""Request time that counts as 1.0: the usual time limit of a replica."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Weights of the four terms, each 0 or more. The first three are the account's, `time` is off by default."""

    kv: float = 0.5
    queue: float = 0.3
    gpu: float = 0.2
    time: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < float("inf"):
                raise ConfigError(
                    f"weight {field.name} is {getattr(self, field.name)}", hint="weights are finite and 0 or more"
                )
        if not any(astuple(self)):
            raise ConfigError("all weights are 0", hint="give at least one term a weight above 0")


@lru_cache(maxsize=64)
def effective_weights(weights: LoadWeights, known_terms: int) -> LoadWeights | None:
    """`weights` over the terms that the fleet reports at all, scaled to keep their sum; None if it reports none.

    Scaling keeps a threshold such as 0.7 of a full replica meaningful in a fleet without, say, GPU metrics.
    """
    kept = [
        weight if known_terms & bit else 0.0
        for weight, bit in zip(astuple(weights), (KV, QUEUE, GPU, TIME), strict=True)
    ]
    total = sum(kept)
    if total == 0:
        return None
    scale = sum(astuple(weights)) / total
    return LoadWeights(*(weight * scale for weight in kept))


def load_score(replica: ReplicaView, weights: LoadWeights | None) -> float:
    """Load of `replica`, lower is better; 1.0 is full in every term (weights summing to 1), 0 if all is unknown."""
    if weights is None:
        return 0.0
    queue = replica.queue / QUEUE_FULL
    score = weights.kv * replica.kv + weights.queue * (queue if queue < 1.0 else 1.0) + weights.gpu * replica.gpu
    if weights.time:
        score += weights.time * min(replica.request_time_s / TIME_FULL_S, 1.0)
    return score
