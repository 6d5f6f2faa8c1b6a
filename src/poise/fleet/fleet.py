"""The one writer of replica state: proxy, poller and admin report facts here, policies read what comes of them."""

from collections.abc import Iterator

from poise.core.errors import ConfigError
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec, ReplicaState
from poise.core.request import Outcome, RequestFacts
from poise.fleet.pool import Pool
from poise.fleet.replica import Replica
from poise.fleet.ticket import Ticket
from poise.routing.load_score import GPU, KV, QUEUE, TIME, resolve_missing

EXPECTED_OUTPUT_TOKENS = 256
"""Output a request is charged when it names no limit: between the means of public chat traces (129 and 350 tokens)."""
RECENT_WEIGHT = 0.1
"""Weight of the newest request in the recent mean request time."""


class Fleet:
    """All replicas, in stable slots. Not thread-safe: it belongs to the event loop.

    `kv_throttle_ratio` takes a replica out of the choice while its known KV usage is above it.
    `stale_s` is the age at which a reading is no longer believed.
    """

    def __init__(self, *, kv_throttle_ratio: float = 0.85, stale_s: float = 2.0) -> None:
        self.kv_throttle_ratio = kv_throttle_ratio
        self.stale_s = stale_s
        self.generation = 0
        self.known_terms = 0
        self._slots: list[Replica | None] = []
        self._by_name: dict[str, Replica] = {}
        self._pools: dict[str | None, Pool] = {}
        self._everyone = Pool(self, ())
        self._dispatches = 0

    # -- membership

    def __iter__(self) -> Iterator[Replica]:
        return (replica for replica in self._slots if replica is not None)

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Replica | None:
        """The replica called `name`, None if there is none."""
        return self._by_name.get(name)

    def at(self, slot: int) -> Replica:
        """The replica in `slot`. Raises `LookupError` if the slot is empty: slots come from views made this instant."""
        replica = self._slots[slot]
        if replica is None:
            raise LookupError(f"slot {slot} is empty")
        return replica

    def join(self, spec: ReplicaSpec) -> Replica:
        """Add a replica in the lowest free slot. Raises `ConfigError` if the name is taken."""
        if spec.name in self._by_name:
            raise ConfigError(f"two replicas are named {spec.name!r}", hint="give each replica a name of its own")
        slot = next((index for index, held in enumerate(self._slots) if held is None), len(self._slots))
        replica = Replica(spec, slot)
        if slot == len(self._slots):
            self._slots.append(replica)
        else:
            self._slots[slot] = replica
        self._by_name[spec.name] = replica
        self._membership_changed()
        return replica

    def leave(self, name: str) -> None:
        """Forget a replica. Requests that it still answers settle on the ticket they hold."""
        replica = self._by_name.pop(name)
        self._slots[replica.slot] = None
        replica.available = False
        self._membership_changed()

    def serves(self, replica: Replica, models: tuple[str, ...]) -> None:
        """The replica's own model list, as its `/v1/models` gave it; ignored where the configuration names a model."""
        if replica.spec.model is None and replica.models != models:
            replica.models = models
            self._membership_changed()

    def pool(self, model: str | None) -> Pool:
        """The replicas for a request that names `model`: those known to serve it, or all if none is known to."""
        return self._pools.get(model, self._everyone)

    def models(self) -> dict[str, list[Replica]]:
        """Every model that is known to be served, sorted by name, and who serves it."""
        served: dict[str, list[Replica]] = {}
        for replica in self:
            for model in replica.models or ():
                served.setdefault(model, []).append(replica)
        return dict(sorted(served.items()))

    # -- a request's life

    def dispatch(self, slot: int, request: RequestFacts, now_s: float) -> Ticket:
        """Charge `request` to the replica in `slot`. The ticket must be settled, however the request ends."""
        replica = self.at(slot)
        tokens = request.prompt_tokens + (request.output_tokens or EXPECTED_OUTPUT_TOKENS)
        epoch = replica.since_poll.charge(tokens)
        self._dispatches += 1
        replica.last_dispatch = self._dispatches
        replica.in_flight += 1
        replica.prefill_tokens += request.prompt_tokens
        self._add_pending(replica, 1, tokens)
        return Ticket(replica, tokens, request.prompt_tokens, epoch, now_s)

    def first_output(self, ticket: Ticket, now_s: float) -> None:
        """The request's first output has come: its prefill is done and it no longer waits. Repeats change nothing."""
        if ticket.first_output_at_s is not None or ticket.settled:
            return
        ticket.first_output_at_s = ticket.replica.progress_at_s = now_s
        self._stop_waiting(ticket)

    def settle(self, ticket: Ticket, outcome: Outcome, now_s: float) -> None:
        """The request has ended. Raises `AssertionError` on a second call: a ticket settles exactly once."""
        assert not ticket.settled, "ticket settled twice"
        if ticket.first_output_at_s is None:
            self._stop_waiting(ticket)
        ticket.settled = True
        replica = ticket.replica
        replica.in_flight -= 1
        replica.outcomes[outcome] += 1
        before = replica.since_poll.tokens
        replica.since_poll.release_tokens(ticket.epoch, ticket.tokens)
        self._add_pending(replica, 0, replica.since_poll.tokens - before)
        if outcome is Outcome.COMPLETED:
            self._learn_request_time(replica, now_s - ticket.dispatched_at_s)

    # -- telemetry

    def scrape_began(self, replica: Replica) -> None:
        """A scrape of `replica` is being sent."""
        replica.since_poll.scrape_began()

    def scraped(self, replica: Replica, reading: LoadReading, now_s: float) -> None:
        """The last begun scrape of `replica` gave `reading`."""
        last = replica.reading
        if last is not None and last.generation_tokens is not None and reading.generation_tokens is not None:
            if reading.generation_tokens > last.generation_tokens:
                replica.progress_at_s = now_s
            elif reading.generation_tokens < last.generation_tokens:
                replica.restarts += 1
        replica.since_poll.scrape_applied()
        replica.reading, replica.reading_at_s = reading, now_s
        replica.failed_scrapes, replica.scrape_error = 0, None
        if reading.asleep is not None and replica.state in (ReplicaState.READY, ReplicaState.ASLEEP):
            replica.state = ReplicaState.ASLEEP if reading.asleep else ReplicaState.READY
        self._resolve()

    def scrape_failed(self, replica: Replica, error: str) -> None:
        """A scrape gave nothing usable. The last reading is believed until it is stale."""
        replica.failed_scrapes += 1
        replica.scrape_error = error

    def advance(self, now_s: float) -> None:
        """Let time pass: readings older than `stale_s` become unknown."""
        stale = [r for r in self if r.reading_at_s is not None and r.reading and now_s - r.reading_at_s > self.stale_s]
        for replica in stale:
            replica.reading = None
        if stale:
            self._resolve()

    # -- what policies compare

    def _membership_changed(self) -> None:
        self.generation += 1
        self._everyone = Pool(self, list(self))
        self._pools = {model: Pool(self, replicas) for model, replicas in self.models().items()}
        self._resolve()

    def _learn_request_time(self, replica: Replica, seconds: float) -> None:
        mean = replica.mean_request_time_s
        replica.mean_request_time_s = seconds if mean is None else mean + RECENT_WEIGHT * (seconds - mean)

    def _stop_waiting(self, ticket: Ticket) -> None:
        replica = ticket.replica
        replica.prefill_tokens -= ticket.prefill_tokens
        before = replica.since_poll.requests
        replica.since_poll.release_request(ticket.epoch)
        self._add_pending(replica, replica.since_poll.requests - before, 0)

    def _add_pending(self, replica: Replica, requests: int, tokens: int) -> None:
        replica.queue += requests
        reading = replica.reading
        if tokens and reading is not None and reading.kv_capacity_tokens:
            replica.kv += tokens / reading.kv_capacity_tokens
        self._fold_availability(replica)

    def _fold_availability(self, replica: Replica) -> None:
        replica.available = (
            replica.state is ReplicaState.READY
            and (replica.max_concurrency is None or replica.in_flight < replica.max_concurrency)
            and (
                replica.reading is None
                or replica.reading.kv_usage_ratio is None
                or replica.kv <= self.kv_throttle_ratio
            )
        )

    def _resolve(self) -> None:
        """Recompute the compared terms of all replicas from readings, peers and what was dispatched since."""
        replicas = list(self)
        readings = [replica.reading or LoadReading() for replica in replicas]
        kv = resolve_missing([reading.kv_usage_ratio for reading in readings])
        queue = resolve_missing([reading.waiting for reading in readings])
        gpu = resolve_missing([reading.gpu_utilisation_ratio for reading in readings])
        time_s = resolve_missing([replica.mean_request_time_s for replica in replicas])
        self.known_terms = sum(
            bit for bit, term in ((KV, kv), (QUEUE, queue), (GPU, gpu), (TIME, time_s)) if term is not None
        )
        for index, (replica, reading) in enumerate(zip(replicas, readings, strict=True)):
            capacity_tokens = reading.kv_capacity_tokens
            pending_ratio = replica.since_poll.tokens / capacity_tokens if capacity_tokens else 0.0
            replica.kv = (kv[index] if kv else 0.0) + pending_ratio
            replica.queue = (queue[index] if queue else 0.0) + replica.since_poll.requests
            replica.gpu = gpu[index] if gpu else 0.0
            replica.request_time_s = time_s[index] if time_s else 0.0
            self._fold_availability(replica)
