"""The part of the fleet that can serve one request: what a policy sees."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
