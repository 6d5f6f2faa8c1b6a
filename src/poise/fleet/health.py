"""What the replicas' conditions mean for the fleet: who is spared for want of a better one, and who starts slowly."""

from typing import TYPE_CHECKING

from poise.fleet.replica import Replica
from poise.health import slow_start
from poise.health.condition import Condition
from poise.health.settings import BreakerSettings, HealthSettings

if TYPE_CHECKING:
    from poise.fleet.fleet import Fleet


class FleetHealth:
    """Part of `Fleet`, which tells it whenever something was noted of a condition."""

    __slots__ = ("_ailing", "_breaker", "_fleet", "_settings")

    def __init__(self, fleet: "Fleet", breaker: BreakerSettings, settings: HealthSettings) -> None:
        self._fleet = fleet
        self._breaker = breaker
        self._settings = settings
        self._ailing: dict[Replica, None] = {}
        """Those that are not good, or have not their full share again; a set that keeps its order."""

    def new_condition(self) -> Condition:
        """That of a replica of which nothing is known."""
        return Condition(self._breaker, self._settings)

    def changed(self, replica: Replica, now_s: float, *, began_anew: bool = False) -> None:
        """Something was noted of the condition of `replica`; `began_anew` if its engine has lost what it had."""
        if not self._fleet.holds(replica):
            self._ailing.pop(replica, None)
            return
        condition = replica.condition
        was_good, was_out = condition.good, condition.out
        condition.judge()
        if condition.good and (began_anew or not was_good):
            replica.recovered_s = now_s
            replica.share = slow_start.share(now_s, now_s, self._settings.slow_start_s)
        if condition.good and replica.share >= slow_start.FULL:
            self._ailing.pop(replica, None)
        else:
            self._ailing[replica] = None
        if condition.good is not was_good:
            self.spare_the_last()
        if began_anew or condition.good is not was_good:
            self.peers_changed()
        self._fleet.fold_availability(replica)
        if condition.out and not was_out:
            self._fleet.on_room()  # there is less of it, which those who wait have to hear if none is left

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        for replica in tuple(self._ailing):
            replica.condition.advance(now_s)
            replica.share = slow_start.share(replica.recovered_s, now_s, self._settings.slow_start_s)
            self.changed(replica, now_s)
        self.peers_changed()

    def peers_changed(self) -> None:
        """What recovering replicas may carry follows what their peers do and are."""
        for replica in self._ailing:
            if replica.share < slow_start.FULL:
                self._fleet.fold_availability(replica)

    def spare_the_last(self) -> None:
        """Doubts count only where somebody better is left for every model that the replica serves."""
        for replica in self._fleet:
            spared = not all(pool.has_good for pool in replica.pools)
            if spared is not replica.spared:
                replica.spared = spared
                self._fleet.fold_availability(replica)
