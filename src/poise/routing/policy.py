"""What a policy is, and what it may see of the fleet. Counterpart: `poise.fleet`, which provides the view."""

from collections.abc import Collection, Sequence
from typing import Protocol

from poise.core.decision import Decision
from poise.core.request import RequestFacts


class ReplicaView(Protocol):
    """One replica as a policy sees it. A policy asks whether it is `available`, never why."""

    @property
    def slot(self) -> int:
        """Stable number of the replica while it is in the fleet."""

    @property
    def seed(self) -> int:
        """30-bit hash of the replica's name, the same in every gateway process: for rendezvous hashing."""

    @property
    def available(self) -> bool:
        """Whether it may be sent a request now: state, health, cap and throttle folded into one answer."""

    @property
    def in_flight(self) -> int:
        """Requests sent there by this gateway that have not ended."""

    @property
    def last_dispatch(self) -> int:
        """Fleet-wide number of the last dispatch there, 0 if none: the smallest was served longest ago."""

    @property
    def kv(self) -> float:
        """KV usage, 0..1, with what was dispatched since the last poll added; the worst of its peers if unknown."""

    @property
    def queue(self) -> float:
        """Requests waiting there, what was dispatched since the last poll added; the worst of its peers if unknown."""

    @property
    def gpu(self) -> float:
        """GPU utilisation, 0..1, mean over the replica's GPUs; the worst of its peers if unknown."""

    @property
    def request_time_s(self) -> float:
        """Recent mean time of a request there in seconds; the worst of its peers if unknown."""


class FleetView(Protocol):
    """The replicas that can serve one request, as they are now. Read-only for policies; nothing in it may be kept."""

    @property
    def replicas(self) -> Sequence[ReplicaView]:
        """The replicas that serve the request's model, in slot order, available or not."""

    @property
    def generation(self) -> int:
        """Changes when a replica joins, leaves or changes place."""

    @property
    def known_terms(self) -> int:
        """Bit mask of the load terms that at least one replica reports: see `poise.routing.load_score`."""


class Policy(Protocol):
    """One placement rule. `choose` has no side effects, does no I/O and reads no clock."""

    def choose(self, request: RequestFacts, fleet: FleetView, now_s: float, tried: Collection[int]) -> Decision:
        """Where `request` goes, given the slots already `tried` for it; a tried replica is not chosen again."""
