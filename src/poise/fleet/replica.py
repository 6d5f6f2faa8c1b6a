"""What the gateway knows of one replica. `Fleet` is the only writer; policies read it as a `ReplicaView`."""

from typing import TYPE_CHECKING

import xxhash

from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState
from poise.core.request import Outcome
from poise.fleet.charges import SinceLastPoll
from poise.fleet.hit_rate import HitRate
from poise.fleet.terms import UNKNOWN, Terms
from poise.health import slow_start
from poise.health.condition import Condition

if TYPE_CHECKING:
    from poise.fleet.pool import Pool

SEED_MASK = (1 << 30) - 1


class Replica:
    """One replica's spec, state, last reading and this gateway's ledger of it.

    `kv`, `queue`, `gpu` and `request_time_s` are what policies compare: the reading, or the worst of the peers where it
    says nothing, plus what was dispatched since. They are kept current at every event so that choosing only reads.
    """

    __slots__ = (
        "available", "condition", "failed_scrapes", "generated_tokens", "gpu", "hit_rate", "hosts", "in_flight",
        "kv", "last_dispatch", "leaving", "max_concurrency", "mean_request_time_s", "models", "name", "outcomes",
        "pools", "prefill_tokens", "queue", "reading", "reading_at_s", "recovered_s", "request_time_s", "restarts",
        "scrape_error", "seed", "share", "since_poll", "slot", "spared", "spec", "terms",
    )  # fmt: skip

    def __init__(self, spec: ReplicaSpec, slot: int, condition: Condition) -> None:
        self.spec = spec
        self.name, self.slot = spec.name, slot
        self.seed = xxhash.xxh3_64_intdigest(spec.name.encode()) & SEED_MASK
        self.condition = condition
        self.pools: tuple[Pool, ...] = ()
        """Those of the models that it is known to serve, or all replicas' if it is known of none."""
        self.spared = False
        """Whether doubts do not count, because some model has no good replica."""
        self.recovered_s = 0.0
        self.share = slow_start.FULL
        """What it may carry of what its peers do: see `poise.health.slow_start`."""
        self.available = True
        self.hosts: tuple[str, ...] = ()
        """Addresses that new connections go to, if they are not looked up for each."""
        self.leaving = False
        """Whether it goes for good once its last request has ended."""
        self.max_concurrency: int | None = None
        self.models: tuple[str, ...] | None = None if spec.model is None else (spec.model,)

        self.in_flight = 0
        self.prefill_tokens = 0
        """Prompt tokens charged here whose first output has not come."""
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

        self.terms = UNKNOWN
        """`own_terms` as last compared with the peers'."""
        self.kv = 0.0
        self.queue = 0.0
        self.gpu = 0.0
        self.request_time_s = 0.0

    @property
    def state(self) -> ReplicaState:
        """See `Condition.state`."""
        return self.condition.state

    @property
    def slow_start_limit(self) -> float:
        """Requests that it may hold at its share of what its peers do, for the model where that is most."""
        return max(pool.slow_start_limit(self.share) for pool in self.pools)

    def own_terms(self) -> Terms:
        """What the reading, and the requests that ended here, say of each load term."""
        reading = self.reading
        if reading is None:
            return (None, None, None, self.mean_request_time_s)
        return (reading.kv_usage_ratio, reading.waiting, reading.gpu_utilisation_ratio, self.mean_request_time_s)
