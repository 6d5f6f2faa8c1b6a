"""Where one request is tried: asks the policy, and says in the gateway's terms what comes of it."""

from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from poise.core.decision import Refuse, Send, Wait
from poise.core.errors import Refusal
from poise.core.request import RequestFacts
from poise.fleet.fleet import expected_tokens
from poise.proxy.naming import turn_to

if TYPE_CHECKING:
    from poise.fleet.fleet import Fleet
    from poise.fleet.replica import Replica
    from poise.proxy.caller import Caller
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest
    from poise.proxy.retry import Failure
    from poise.proxy.trail import Trail

NO_REPLICA = Refusal(503, "no_replica", "no replica can take the request now", "gateway", retry_after_s=1)
POLICY_FAILED = Refusal(500, "policy_failed", "the placement policy failed; the gateway's log says how", "gateway")


AT_HOME = "stored response"


class Placement:
    """The replica that a request is to be sent to, and why."""

    __slots__ = ("reason", "replica")

    def __init__(self, replica: "Replica", reason: str) -> None:
        self.replica = replica
        self.reason = reason


class Search:
    """The search for a replica that answers one request.

    `attempts` counts all that it was sent to. At each model it may be sent to as many as the settings say.
    """

    __slots__ = ("_caller", "_left", "_path", "_request", "_tried", "attempts", "facts")

    def __init__(self, path: "DataPath", caller: "Caller", request: "IncomingRequest", facts: RequestFacts) -> None:
        self._path = path
        self._caller = caller
        self._request = request
        self._left = path.settings.retry.attempts
        self._tried: tuple[Replica, ...] = ()
        self.attempts = 0
        self.facts = facts

    def place(self, trail: "Trail | None") -> Placement | Refusal | None:
        """Where the request goes now, None if it has to wait, a refusal if waiting would not help."""
        home = self.home
        placed = self._choose(trail) if home is None else self._at_home(home, trail)
        if isinstance(placed, Placement):
            self.attempts += 1
            self._left -= 1
            self._tried += (placed.replica,)
        return placed

    @property
    def home(self) -> "Replica | None":
        """The one replica that the request is for, because it has stored what it is about; None if any will do.

        That replica is waited for, but not when it is gone or down: what it had stored is lost then, as an engine says.
        """
        home = self._request.home
        if home is not None and (home.condition.out or self._path.fleet.named(home.name) is not home):
            home = self._request.home = None
        return home

    def may_go_on(self, kind: str) -> bool:
        """Whether the request is sent elsewhere after it has failed at a replica; if so, that is counted.

        Never one whose stored response only the replica has that failed.
        """
        path, request = self._path, self._request
        if request.home is not None:
            return False
        same_model = self._left > 0 and self._may_be_tried(self.facts)
        if not same_model and not request.fallbacks:
            return False
        if not path.retries.allows(monotonic()) or not (same_model or self._fall_back()):
            return False
        path.counters.retries[kind] += 1
        return True

    def told_of(self, failure: "Failure") -> Refusal:
        """What the caller is told when its last attempt has failed: to come back, if that has left nobody to ask."""
        return NO_REPLICA if self._path.fleet.pool(self.facts.model).hopeless else failure.refusal

    def _at_home(self, home: "Replica", trail: "Trail | None") -> Placement | None:
        if not home.available or not home.has_room_for(expected_tokens(self.facts)):
            return None
        if trail is not None:
            now_s = monotonic()
            trail.decided((home,), Send(home.slot, AT_HOME), (), now_s, now_s)
        return Placement(home, AT_HOME)

    def _choose(self, trail: "Trail | None") -> Placement | Refusal | None:
        path, facts, tried = self._path, self.facts, self._tried
        fleet = path.fleet
        began_s = monotonic()
        pool = fleet.pool(facts.model)
        try:
            small = pool.too_small_for(expected_tokens(facts)) if fleet.counts_tokens else []
            slots = small + [replica.slot for replica in tried if replica in pool.replicas] if small or tried else ()
            decision = path.policy.choose(facts, pool, began_s, slots)
            placed = _checked(fleet, decision)
        except Exception as error:  # noqa: BLE001 - a user's own policy may raise anything; only this request suffers
            path.report("the policy failed", error)
            return POLICY_FAILED
        now_s = monotonic()
        path.counters.decision_s.observe(now_s - began_s)
        if trail is not None:
            trail.decided(pool.replicas, decision, slots, began_s, now_s)
        if placed is not None:
            return placed
        may_wait = self._may_be_tried(facts) if tried else not pool.hopeless
        return None if may_wait and (small or isinstance(decision, Wait)) else NO_REPLICA

    def _may_be_tried(self, facts: RequestFacts) -> bool:
        """Whether another replica can take the request, now or when it has room again."""
        pool = self._path.fleet.pool(facts.model)
        return any(replica not in self._tried and (replica.available or replica.full) for replica in pool.replicas)

    def _fall_back(self) -> bool:
        """Turn to the next model that may answer instead and has a replica that can."""
        request = self._request
        while request.fallbacks:
            model, request.fallbacks = request.fallbacks[0], request.fallbacks[1:]
            facts = replace(self.facts, model=model)
            if self._may_be_tried(facts) and turn_to(self._path, self._caller, request, self.facts.model, model):
                self.facts, self._left = facts, self._path.settings.retry.attempts
                return True
        return False


def _checked(fleet: "Fleet", decision: object) -> Placement | None:
    """The placement that `decision` stands for, if any. Raises if it is none: a user's own policy may return anything,
    and the reason becomes a header."""
    if isinstance(decision, Send):
        if not decision.reason.isprintable():
            raise ValueError(f"the reason {decision.reason!r} cannot be shown")
        return Placement(fleet.at(decision.slot), decision.reason)
    if not isinstance(decision, Wait | Refuse):
        raise TypeError(f"choose() returned {decision!r}, which is no decision")
    return None
