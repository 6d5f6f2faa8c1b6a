"""What the gateway knows of one replica. `Fleet` is the only writer; policies read it as a `ReplicaView`."""

from typing import TYPE_CHECKING

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState
from poise.core.request import Outcome
from poise.fleet.charges import SinceLastPoll
from poise.fleet.hit_rate import HitRate
from poise.fleet.terms import UNKNOWN, Terms
from poise.health import slow_start
from poise.health.condition import Condition
from poise.routing.rendezvous import seed_of

if TYPE_CHECKING:
    from poise.fleet.pool import Pool

AUTO_CAP_RATIO = 0.8
"""Share of its KV tokens that an automatic cap lets a replica's requests need: above it, some are preempted."""


class Replica:
    """One replica's spec, state, last reading and this gateway's ledger of it.

    `kv`, `queue`, `gpu` and `request_time_s` are what policies compare: the reading, or the worst of the peers where it
    says nothing, plus what was dispatched since. They are kept current at every event so that choosing only reads.
    """

    __slots__ = (
        "available", "condition", "failed_scrapes", "full", "generated_tokens", "gpu", "held_tokens", "hit_rate",
        "hosts", "in_flight", "kv", "last_dispatch", "leaving", "max_concurrency", "max_tokens", "mean_request_time_s",
        "models", "name", "outcomes", "pools", "prefill_tokens", "queue", "reading", "reading_at_s", "recovered_s",
        "request_time_s", "restarts", "scrape_error", "seed", "share", "since_poll", "slot", "spared", "spec", "terms",
    )  # fmt: skip

    def __init__(self, spec: ReplicaSpec, slot: int, condition: Condition) -> None:
        self.spec = spec
        self.name, self.slot = spec.name, slot
        self.seed = seed_of(spec.name)
        self.condition = condition
        self.pools: tuple[Pool, ...] = ()
        """Those of the models that it is known to serve, or all replicas' if it is known of none."""
        self.spared = False
        """Whether doubts do not count, because some model has no good replica."""
        self.recovered_s = 0.0
        self.share = slow_start.FULL
        """What it may carry of what its peers do: see `poise.health.slow_start`."""
        self.hosts: tuple[str, ...] = ()
        """Addresses that new connections go to, if they are not looked up for each."""
        self.available, self.full = True, False
        """`full` is whether it could be sent requests but for its cap or its KV usage: there will be room again."""
        self.leaving = False
        """Whether it goes for good once its last request has ended."""
        self.max_concurrency: int | None = None
        self.max_tokens: int | None = None
        """Bound of `held_tokens` where the cap is automatic, None where there is none or it is not known yet."""
        self.models: tuple[str, ...] | None = None if spec.model is None else (spec.model,)

        self.in_flight = self.held_tokens = self.prefill_tokens = 0
        """Requests here, their prompt and expected output tokens, and the prompt tokens of those without output yet."""
        self.last_dispatch = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.mean_request_time_s: float | None = None

        self.reading: LoadReading | None = None
        """The last reading that is not stale."""
        self.reading_at_s: float | None = None
        self.hit_rate = HitRate()
        self.since_poll = SinceLastPoll()
        self.failed_scrapes = 0
        self.scrape_error: str | None = None
        self.generated_tokens: float | None = None
        """The engine's own counter as last read, kept when the reading is stale: restarts take longer than that."""
        self.restarts = 0

        self.cap()

        self.terms = UNKNOWN
        """`own_terms` as last compared with the peers'."""
        self.kv = self.queue = self.gpu = self.request_time_s = 0.0

    def cap(self) -> None:
        """Take the bounds from the spec and the last reading; what an engine holds does not change as that ages."""
        most, reading = self.spec.max_concurrency, self.reading
        self.max_concurrency = None if most == "auto" else most
        if most != "auto":
            self.max_tokens = None
        elif reading is not None and reading.kv_capacity_tokens:
            self.max_tokens = int(AUTO_CAP_RATIO * reading.kv_capacity_tokens)

    @property
    def state(self) -> ReplicaState:
        """See `Condition.state`."""
        return self.condition.state

    @property
    def slow_start_limit(self) -> float:
        """Requests that it may hold at its share of what its peers do, for the model where that is most."""
        return max(pool.slow_start_limit(self.share) for pool in self.pools)

    def has_room(self, kv_throttle_ratio: float) -> bool:
        """Whether caps, slow start and known KV usage leave room for a request."""
        in_flight, reading = self.in_flight, self.reading
        return (
            (self.max_concurrency is None or in_flight < self.max_concurrency)
            and (self.max_tokens is None or not in_flight or self.held_tokens < self.max_tokens)
            and (reading is None or reading.kv_usage_ratio is None or self.kv <= kv_throttle_ratio)
            and (self.share >= slow_start.FULL or in_flight < self.slow_start_limit)
        )

    def has_room_for(self, tokens: int) -> bool:
        """Whether an automatic cap leaves room for a request of `tokens` beside what runs here; alone any fits."""
        return self.max_tokens is None or not self.in_flight or self.held_tokens + tokens <= self.max_tokens

    def own_terms(self) -> Terms:
        """What the reading, and the requests that ended here, say of each load term."""
        reading = self.reading
        if reading is None:
            return (None, None, None, self.mean_request_time_s)
        return (reading.kv_usage_ratio, reading.waiting, reading.gpu_utilisation_ratio, self.mean_request_time_s)
