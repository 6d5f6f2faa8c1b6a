"""How much a replica that has just recovered may be given: a share of what its peers carry, growing with time. Pure."""

import math
from typing import Final

FULL: Final = 1.0


def share(recovered_s: float, now_s: float, slow_start_s: float) -> float:
    """The replica's share at `now_s`, 0 to 1 (`FULL`); 1 if `slow_start_s` is 0."""
    elapsed_s = now_s - recovered_s
    return FULL if elapsed_s >= slow_start_s else max(elapsed_s / slow_start_s, 0.0)


def limit(of_peers: float, peers: int, peers_in_flight: int) -> float:
    """Requests that the replica may hold at a share `of_peers` of the mean of `peers` that carry `peers_in_flight`.

    Never below 1, so that an idle fleet loses nothing; without peers there is none.
    """
    if not peers or of_peers >= FULL:
        return math.inf
    return max(1.0, of_peers * peers_in_flight / peers)
