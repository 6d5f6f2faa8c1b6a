"""Rendezvous hashing: all processes that know the same replicas give a session the same home, sharing no state."""

from collections.abc import Sequence

import xxhash

from poise.routing.policy import ReplicaView

_MASK = (1 << 30) - 1
"""Thirty bits at a time: their products are small integers, which cost a tenth of large ones once compiled."""
_FIRST, _SECOND, _THIRD = 0x2C1B3C6D, 0x297A2D39, 0x1B56C4E9
"""Odd, with about as many ones as noughts. What matters is how evenly sessions spread, and that is tested."""


def seed_of(name: str) -> int:
    """What stands for a replica of that name in `rendezvous`: 30 bits, the same in every process."""
    return xxhash.xxh3_64_intdigest(name.encode()) & _MASK


def rendezvous(session: int, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replica whose hash with `session` (64 bits) is highest; `replicas` is not empty.

    When a replica leaves, only its own sessions move, spread over all others; a new one takes its share from each.
    """
    key = (session ^ (session >> 30) ^ (session >> 60)) & _MASK
    best = replicas[0]
    highest = -1
    for replica in replicas:
        mixed = ((key ^ replica.seed) * _FIRST) & _MASK
        mixed = ((mixed ^ (mixed >> 15)) * _SECOND) & _MASK
        mixed = ((mixed ^ (mixed >> 13)) * _THIRD) & _MASK
        if mixed > highest:
            best, highest = replica, mixed
    return best
