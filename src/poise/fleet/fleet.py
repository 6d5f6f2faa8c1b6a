"""The one writer of replica state: proxy, poller and admin report facts here, policies read what comes of them."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from poise.core.errors import ConfigError
from poise.core.reading import LoadReading
from poise.core.replica import ReplicaSpec
from poise.core.request import Outcome, RequestFacts
from poise.fleet.health import FleetHealth
from poise.fleet.pool import Pool
from poise.fleet.replica import Replica
from poise.fleet.terms import WorstTerms
from poise.fleet.ticket import Ticket
from poise.health.breaker import Sign
from poise.health.settings import BreakerSettings, HealthSettings

_COMPLETED: Final = Outcome.COMPLETED  # enumerations' members are slow to look up
_FAILED: Final = Outcome.FAILED
EXPECTED_OUTPUT_TOKENS = 256
"""Output a request is charged, or its own limit if that is lower: between the medians of public chat traces (129 and
350 tokens). A higher limit says little about what will be generated, and charging it would let one caller make a
replica look full."""
RECENT_WEIGHT = 0.1
"""Weight of the newest request in the recent mean request time."""


def expected_tokens(request: RequestFacts) -> int:
    """KV tokens that `request` is expected to need: its prompt, and its output as far as that can be told."""
    return request.prompt_tokens + min(request.output_tokens or EXPECTED_OUTPUT_TOKENS, EXPECTED_OUTPUT_TOKENS)


def _nobody_waits() -> None:
    """Stands for whoever wants to know of room."""


class Fleet:
    """All replicas, in stable slots. Not thread-safe: it belongs to the event loop.

    `kv_throttle_ratio` takes a replica out of the choice while its known KV usage is above it.
    `stale_s` is the age at which a reading is no longer believed.
    """

    def __init__(
        self,
        *,
        kv_throttle_ratio: float = 0.85,
        stale_s: float = 2.0,
        breaker: BreakerSettings | None = None,
        health: HealthSettings | None = None,
    ) -> None:
        self.kv_throttle_ratio = kv_throttle_ratio
        self.stale_s = stale_s
        self._health = FleetHealth(self, breaker or BreakerSettings(), health or HealthSettings())
        self.generation = 0
        self._worst = WorstTerms()
        self._slots: list[Replica | None] = []
        self._by_name: dict[str, Replica] = {}
        self._unlisted = Pool(self, ())
        self._all_listed = False
        self._pools: dict[str | None, Pool] = {None: self._unlisted}
        self._dispatches = 0
        self.counts_tokens = False
        """Whether any replica has an automatic cap whose size is known."""
        self.on_room: Callable[[], None] = _nobody_waits
        """Called, often, whenever a request that had to wait may be placeable now. It must not ask at once."""

    @property
    def known_terms(self) -> int:
        """See `FleetView.known_terms`."""
        return self._worst.known

    # -- membership

    def __iter__(self) -> Iterator[Replica]:
        """Every replica in a slot, those included that leave once their last request has ended."""
        return (replica for replica in self._slots if replica is not None)

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Replica | None:
        """The replica called `name`, None if there is none, or if it is leaving."""
        return self._by_name.get(name)

    def holds(self, replica: Replica) -> bool:
        """Whether `replica` is in its slot still: one that is leaving is, until its last request has ended."""
        return self._slots[replica.slot] is replica

    def by_name(self) -> dict[str, Replica]:
        """All replicas by name, sorted by slot; one that leaves only if no other has its name by now."""
        found = {replica.name: replica for replica in self if replica.leaving} | self._by_name
        return {replica.name: replica for replica in sorted(found.values(), key=_slot)}

    def at(self, slot: int) -> Replica:
        """The replica in `slot`. Raises `LookupError` if the slot is empty: slots come from views made this instant."""
        replica = self._slots[slot] if slot >= 0 else None
        if replica is None:
            raise LookupError(f"slot {slot} is empty")
        return replica

    def join(self, spec: ReplicaSpec) -> Replica:
        """Add a replica in the lowest free slot. Raises `ConfigError` if the name is taken."""
        if spec.name in self._by_name:
            raise ConfigError(f"two replicas are named {spec.name!r}", hint="give each replica a name of its own")
        slot = next((index for index, held in enumerate(self._slots) if held is None), len(self._slots))
        replica = Replica(spec, slot, self._health.new_condition())
        if slot == len(self._slots):
            self._slots.append(replica)
        else:
            self._slots[slot] = replica
        self._by_name[spec.name] = replica
        self._membership_changed()
        return replica

    def leave(self, name: str) -> None:
        """Take no new request to a replica and free its name. It keeps its slot until its last request has ended."""
        replica = self._by_name.pop(name)
        replica.leaving = True
        self._take_out(replica, taken_out=True)
        if replica.in_flight == 0:
            self._slots[replica.slot] = None
        self._membership_changed()

    def drain(self, name: str) -> None:
        """Take no new request to a replica, until `resume`; those that run there are not touched."""
        self._take_out(self._by_name[name], taken_out=True)
        self._membership_changed()

    def resume(self, name: str) -> None:
        """Undo `drain`."""
        self._take_out(self._by_name[name], taken_out=False)
        self._membership_changed()

    def change(self, spec: ReplicaSpec) -> None:
        """Replace what is configured of the replica of that name: anything but where and how it is reached."""
        replica = self._by_name[spec.name]
        if spec.model != replica.spec.model:
            replica.models = None if spec.model is None else (spec.model,)
        replica.spec = spec
        self._cap(replica)
        self._membership_changed()

    def locate(self, name: str, hosts: tuple[str, ...]) -> None:
        """The addresses that a replica's host name stands for now; none if it is not known, or no name."""
        replica = self._by_name[name]
        if replica.hosts != hosts:
            replica.hosts = hosts
            self._membership_changed()

    def serves(self, replica: Replica, models: tuple[str, ...]) -> None:
        """The replica's own model list, as its `/v1/models` gave it; ignored where the configuration names a model."""
        if replica.spec.model is None and replica.models != models:
            replica.models = models
            self._membership_changed()

    def pool(self, model: str | None) -> Pool:
        """The replicas for a request that names `model`, None if it names none: those known to serve it.

        Where none does, or all that do drain, those of which nothing is known yet: one may be the successor.
        """
        return self._pools.get(model, self._unlisted)

    def may_serve(self, model: str) -> bool:
        """Whether some replica serves `model`, if only when its drain is over, or has not said yet what it serves."""
        return model in self._pools or not self._all_listed

    @property
    def served_models(self) -> Collection[str | None]:
        """Every model that is known to be served; a view, for asking whether it holds one."""
        return self._pools.keys()

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
        tokens = expected_tokens(request)
        epoch = replica.since_poll.charge(tokens)
        self._dispatches += 1
        replica.last_dispatch = self._dispatches
        replica.in_flight += 1
        replica.held_tokens += tokens
        replica.prefill_tokens += request.prompt_tokens
        trial = replica.condition.breaker.sent(now_s)
        self._add_pending(replica, 1, tokens)
        self._health.peers_changed()
        return Ticket(replica, tokens, request.prompt_tokens, epoch, trial, now_s)

    def first_output(self, ticket: Ticket, now_s: float) -> None:
        """The request's first output has come: its prefill is done and it no longer waits. Repeats change nothing."""
        if ticket.first_output_at_s is not None or ticket.settled:
            return
        replica = ticket.replica
        ticket.first_output_at_s = now_s
        replica.condition.worked(now_s)
        self._stop_waiting(ticket)
        if ticket.trial:
            replica.condition.breaker.output(ticket.trial, now_s)
            self._health.changed(replica, now_s)

    def flowed(self, replica: Replica, now_s: float) -> None:
        """Bytes of a stream have come from `replica`."""
        replica.condition.flowed_at_s = now_s

    def settle(self, ticket: Ticket, outcome: Outcome, now_s: float, sign: int | None = None) -> None:
        """The request has ended, and that is a `Sign` of how its replica is; None takes the outcome's.

        Raises `AssertionError` on a second call: a ticket settles exactly once.
        """
        assert not ticket.settled, "ticket settled twice"
        if ticket.first_output_at_s is None:
            self._stop_waiting(ticket)
        ticket.settled = True
        replica = ticket.replica
        replica.in_flight -= 1
        replica.held_tokens -= ticket.tokens
        replica.outcomes[outcome] += 1
        before = replica.since_poll.tokens
        replica.since_poll.release_tokens(ticket.epoch, ticket.tokens)
        self._add_pending(replica, 0, replica.since_poll.tokens - before)
        if outcome is _COMPLETED:
            self._learn_request_time(replica, now_s - ticket.dispatched_at_s)
        if sign is None:
            sign = Sign.WELL if outcome is _COMPLETED else Sign.FAILED if outcome is _FAILED else Sign.NOTHING
        replica.condition.ended(ticket.trial, sign, now_s)
        if ticket.trial or sign != Sign.WELL:
            self._health.changed(replica, now_s)
        self._health.peers_changed()
        if replica.leaving and replica.in_flight == 0 and self.holds(replica):
            self._slots[replica.slot] = None
            self._membership_changed()
        self.on_room()

    # -- telemetry

    def scrape_began(self, replica: Replica) -> None:
        """A scrape of `replica` is being sent."""
        replica.since_poll.scrape_began()

    def scraped(self, replica: Replica, reading: LoadReading, now_s: float) -> None:
        """The last begun scrape of `replica` gave `reading`. Ignored if the replica has left."""
        if not self.holds(replica):
            return
        restarted = self._follow_output(replica, reading.generation_tokens, now_s)
        replica.since_poll.scrape_applied()
        replica.reading, replica.reading_at_s = reading, now_s
        replica.hit_rate.read(reading.prefix_queries_tokens, reading.prefix_hits_tokens, now_s)
        replica.failed_scrapes, replica.scrape_error = 0, None
        self._cap(replica)
        replica.condition.read(reading, now_s, restarted=restarted)
        self._health.changed(replica, now_s, began_anew=restarted)
        self._terms_changed(replica)

    def scrape_failed(self, replica: Replica, error: str) -> None:
        """A scrape gave nothing usable. The last reading is believed until it is stale."""
        replica.failed_scrapes += 1
        replica.scrape_error = error

    def probed(self, replica: Replica, probe: int, now_s: float) -> None:
        """A `Probe` of the replica's server has ended. Ignored if the replica has left."""
        if self.holds(replica):
            replica.condition.probed(probe, now_s)
            self._health.changed(replica, now_s)

    def heal(self, now_s: float) -> None:
        """Let time pass for those that are not well: to be called often, and costs nothing while all are."""
        self._health.advance(now_s)

    def advance(self, now_s: float) -> None:
        """Let time pass: readings older than `stale_s` become unknown, request times learned since count."""
        self.heal(now_s)
        for replica in self:
            stale = replica.reading is not None and now_s - (replica.reading_at_s or 0.0) > self.stale_s
            if stale:
                replica.reading = None
            if stale or replica.own_terms() != replica.terms:
                self._terms_changed(replica)

    # -- what policies compare

    def _take_out(self, replica: Replica, *, taken_out: bool) -> None:
        replica.condition.taken_out = taken_out
        replica.condition.judge()
        self.fold_availability(replica)

    def _membership_changed(self) -> None:
        self.generation += 1
        staying = _staying(self)
        unlisted = [replica for replica in staying if replica.models is None]
        self._all_listed = bool(self._by_name) and all([replica.models is not None for replica in self])
        self._unlisted = Pool(self, unlisted)
        self._pools = {model: Pool(self, _staying(found) or unlisted) for model, found in self.models().items()}
        self._pools[None] = Pool(self, staying)
        for replica in self:
            pools = [pool for pool in (*self._pools.values(), self._unlisted) if replica in pool.replicas]
            replica.pools = tuple(pools) or (self._pools[None],)
        self._worst.rebuild(replica.terms for replica in self)
        self._health.spare_the_last()
        self._compare_all()
        self.on_room()

    def _follow_output(self, replica: Replica, tokens: float | None, now_s: float) -> bool:
        """Tokens that were generated since the last scrape are progress; whether the counter has started again."""
        before = replica.generated_tokens
        if tokens is None:
            return False
        replica.generated_tokens = tokens
        if before is None or tokens == before:
            return False
        if tokens > before:
            replica.condition.worked(now_s)
            return False
        replica.restarts += 1
        return True

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
        self.fold_availability(replica)

    # -- who may be sent a request

    def fold_availability(self, replica: Replica) -> None:
        """Whether `replica` may be sent a request now: the one place where all that speaks against it meets."""
        condition = replica.condition
        fit = not condition.out and (replica.spared or (condition.breaker.admits and not condition.doubted))
        replica.full = fit and not replica.has_room(self.kv_throttle_ratio)
        before, replica.available = replica.available, fit and not replica.full
        if replica.available and not before:
            self.on_room()

    def _cap(self, replica: Replica) -> None:
        replica.cap()
        self.counts_tokens = self.counts_tokens or replica.max_tokens is not None

    def _terms_changed(self, replica: Replica) -> None:
        """`replica` has a new reading, or none any more: compare it anew, and all others if it sets their stand-ins."""
        before, replica.terms = replica.terms, replica.own_terms()
        if self._worst.replace(before, replica.terms, (other.terms for other in self)):
            self._compare_all()
        else:
            self._compare(replica)

    def _compare_all(self) -> None:
        for replica in self:
            self._compare(replica)

    def _compare(self, replica: Replica) -> None:
        """Make what policies compare from the reading, or the worst of the peers, and what was dispatched since."""
        kv, queue, gpu, time_s = (
            (worst or 0.0) if own is None else own for own, worst in zip(replica.terms, self._worst.values, strict=True)
        )
        reading, since_poll = replica.reading, replica.since_poll
        capacity_tokens = reading.kv_capacity_tokens if reading is not None else None
        replica.kv = kv + since_poll.tokens / capacity_tokens if capacity_tokens else kv
        replica.queue = queue + since_poll.requests
        replica.gpu = gpu
        replica.request_time_s = time_s
        self.fold_availability(replica)


def _staying(replicas: Iterable[Replica]) -> list[Replica]:
    """Without those that drain: a session whose home drains is to find one new home, not another at each turn."""
    return [replica for replica in replicas if not replica.condition.taken_out]


def _slot(replica: Replica) -> int:
    return replica.slot
