"""The part of the fleet that can serve one request: what a policy sees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poise.health import slow_start

if TYPE_CHECKING:
    from poise.fleet.fleet import Fleet
    from poise.fleet.replica import Replica


class Pool:
    """A `FleetView` over `replicas`; the fleet drops it when membership changes."""

    __slots__ = ("_fleet", "replicas")

    def __init__(self, fleet: "Fleet", replicas: "Sequence[Replica]") -> None:
        self._fleet = fleet
        self.replicas = replicas

    @property
    def generation(self) -> int:
        """See `FleetView.generation`."""
        return self._fleet.generation

    @property
    def known_terms(self) -> int:
        """See `FleetView.known_terms`."""
        return self._fleet.known_terms

    @property
    def hopeless(self) -> bool:
        """Whether no replica can be expected to take a request soon: all are dead, asleep or on their way out."""
        return all(replica.condition.out for replica in self.replicas)

    def slow_start_limit(self, share: float) -> float:
        """See `poise.health.slow_start.limit`; peers are those that are good and start slowly no more themselves."""
        steady = [peer.in_flight for peer in self.replicas if peer.condition.good and peer.share >= slow_start.FULL]
        return slow_start.limit(share, len(steady), sum(steady))

    @property
    def has_good(self) -> bool:
        """Whether nothing speaks against the health of at least one replica."""
        return any(replica.condition.good for replica in self.replicas)

    def too_small_for(self, tokens: int) -> list[int]:
        """Slots of the replicas whose automatic cap has no room for a request of `tokens` beside what runs there."""
        return [replica.slot for replica in self.replicas if not replica.has_room_for(tokens)]
