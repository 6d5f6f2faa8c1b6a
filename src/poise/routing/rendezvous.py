"""Rendezvous hashing: all processes that know the same replicas give a session the same home, sharing no state."""

from collections.abc import Sequence

import xxhash

from poise.routing.policy import ReplicaView

_hash = xxhash.xxh3_64_intdigest


def rendezvous(session: int, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replica whose hash with `session` (64 bits) is highest; `replicas` is not empty.

    When a replica leaves, only its own sessions move, spread over all others; a new one takes its share from each.
    """
    key = session.to_bytes(8, "little")
    digests = [_hash(key, replica.seed) for replica in replicas]
    return replicas[digests.index(max(digests))]
