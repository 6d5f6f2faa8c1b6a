"""What is kept of a request on its way, to explain it afterwards: the decisions about it and what came of each."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol

from poise.core.clock import wall_time_s
from poise.core.decision import Decision, Send
from poise.core.request import Outcome, RequestFacts
from poise.fleet.obstacle import obstacle
from poise.proxy.request_log import RequestLine
from poise.wire.http import without
from poise.wire.trace_context import TRACEPARENT, TRACESTATE, trace_headers

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.proxy.request import IncomingRequest

TRAILS_PER_TICK = 20
"""Trails kept of those begun between two ticks of the data path, a tenth of a second: noting what every replica looked
like costs more than the decision, and nobody can follow more than 200 decisions a second."""


class Candidate:
    """One replica as it was when a decision was made. `obstacle` says why it was not available, None if it was."""

    __slots__ = ("gpu", "in_flight", "kv", "obstacle", "prefill_tokens", "queue", "replica", "request_time_s")

    def __init__(self, replica: "Replica") -> None:
        self.replica = replica
        self.obstacle = obstacle(replica)
        self.kv = replica.kv
        self.queue = replica.queue
        self.gpu = replica.gpu
        self.request_time_s = replica.request_time_s
        self.in_flight = replica.in_flight
        self.prefill_tokens = replica.prefill_tokens


class Step:
    """One decision about a request, and what came of it. Times are monotonic; None is "not yet" or "never"."""

    __slots__ = (
        "at_s", "candidates", "decision", "ended_s", "error", "excluded", "first_output_s", "outcome", "replica",
        "span_id", "took_s",
    )  # fmt: skip

    def __init__(
        self, decision: Decision, replica: "Replica | None", excluded: Collection[int], at_s: float, took_s: float
    ) -> None:
        self.candidates: Sequence[Candidate] = ()
        """All replicas that could have been chosen; empty unless the decision is to be explained."""
        self.decision = decision
        self.replica = replica
        """Where the request was sent, None if nowhere."""
        self.excluded = excluded
        """Slots that could not be chosen: tried before, or too small for the request."""
        self.at_s = at_s
        self.took_s = took_s
        self.first_output_s: float | None = None
        self.ended_s: float | None = None
        self.outcome: Outcome | None = None
        self.error: str | None = None
        """What was wrong with the attempt: a kind of failure."""
        self.span_id = b""


class TraceContext(Protocol):
    """The trace that a request belongs to."""

    @property
    def trace_id(self) -> bytes:
        """32 hex digits."""

    @property
    def state(self) -> bytes:
        """Vendors' values, as they came."""

    @property
    def sampled(self) -> bool:
        """Whether the trace is recorded."""

    def new_span_id(self) -> bytes:
        """An id for an attempt: 16 hex digits."""


class Tracer(Protocol):
    """Whoever records traces."""

    def begin(self, headers: list[bytes]) -> TraceContext:
        """The trace of a request that came with `headers`: flat, name, `: `, value, line end."""

    @property
    def ended(self) -> "Callable[[Trail], None]":
        """To be told of each request of a sampled trace when it has ended."""

    @property
    def lost(self) -> int:
        """Requests whose traces could not be delivered."""


class Trail:
    """A request from its start to its end. `line` is what the log says of it, once it has ended.

    `explained` is whether each decision is to show all candidates.
    """

    __slots__ = ("at", "context", "explained", "facts", "line", "method", "path", "request_id", "started_s", "steps")

    def __init__(self, request: "IncomingRequest", facts: RequestFacts, started_s: float, *, explained: bool) -> None:
        self.explained = explained
        self.request_id = request.request_id
        self.method = request.method
        self.path = request.path
        self.facts = facts
        self.started_s = started_s
        self.at = wall_time_s()
        self.steps: list[Step] = []
        self.line: RequestLine | None = None
        self.context: TraceContext | None = None

    def decided(
        self, replicas: "Sequence[Replica]", decision: Decision, excluded: Collection[int], began_s: float, now_s: float
    ) -> None:
        """The policy has answered. A request that still waits is asked about again and again: that is noted once."""
        chosen: Replica | None = None
        if isinstance(decision, Send):
            chosen = next((replica for replica in replicas if replica.slot == decision.slot), None)
        elif self.steps and self.steps[-1].replica is None:
            return
        step = Step(decision, chosen, tuple(excluded), now_s, now_s - began_s)
        if self.explained:
            step.candidates = [Candidate(replica) for replica in replicas]
        self.steps.append(step)

    def sent(self) -> bytes:
        """The request is sent where the last decision says; returns the header lines to send along."""
        context = self.context
        if context is None:
            return b""
        step = self.steps[-1]
        step.span_id = context.new_span_id()
        return trace_headers(context.trace_id, step.span_id, context.state, sampled=context.sampled)

    def first_output(self, now_s: float) -> None:
        """The last attempt has begun to answer."""
        if self.steps:
            self.steps[-1].first_output_s = now_s

    def failed(self, error: str) -> None:
        """The last attempt goes wrong."""
        if self.steps:
            self.steps[-1].error = error

    def attempt_ended(self, outcome: Outcome, now_s: float) -> None:
        """The last attempt is over."""
        if self.steps:
            self.steps[-1].outcome, self.steps[-1].ended_s = outcome, now_s


class Trails:
    """The trails of the last `kept` requests, and of all others while there is a `tracer`."""

    __slots__ = ("_left", "recent", "tracer")

    def __init__(self, kept: int) -> None:
        self.recent: deque[Trail] = deque(maxlen=kept)
        self.tracer: Tracer | None = None
        self._left = 0
        self.tick()

    def tick(self) -> None:
        """A tenth of a second has passed."""
        self._left = TRAILS_PER_TICK if self.recent.maxlen else 0

    def begin(self, request: "IncomingRequest", facts: RequestFacts, now_s: float) -> Trail | None:
        """The trail of a request that begins, None if nothing is to be kept of it."""
        tracer = self.tracer
        if self._left <= 0 and tracer is None:
            return None
        trail = Trail(request, facts, now_s, explained=self._left > 0)
        if trail.explained:
            self._left -= 1
            self.recent.append(trail)
        if tracer is not None:
            trail.context = tracer.begin(request.head)
            request.head = without(request.head, (TRACEPARENT, TRACESTATE))
        return trail

    def ended(self, trail: Trail, line: RequestLine) -> None:
        """The request has ended, as `line` says."""
        trail.line = line
        if self.tracer is not None and trail.context is not None and trail.context.sampled:
            self.tracer.ended(trail)
