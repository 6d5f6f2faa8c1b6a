"""One request's life: placed, sent, answered, retried or refused, settled. The only place where that order is kept."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from poise.core.decision import Send, Wait
from poise.core.errors import Refusal
from poise.core.request import Outcome
from poise.proxy.answer import PlainAnswer, StreamAnswer
from poise.proxy.request_log import RequestLine
from poise.proxy.retry import MALFORMED, STALE, TIMED_OUT, UNREACHABLE, Failure, FailureKind
from poise.wire import facts as request_facts
from poise.wire.answers import RefusedInStream, Usage
from poise.wire.http import AnswerHead, error_body, refusal_headers, status_line

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.fleet.ticket import Ticket
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest
    from poise.proxy.routes import Route
    from poise.proxy.upstream import UpstreamConnection

NO_REPLICA = Refusal(503, "no_replica", "no replica can take the request now", "gateway", retry_after_s=1)
POLICY_FAILED = Refusal(500, "policy_failed", "the placement policy failed; the gateway's log says how", "gateway")
STALE_WITHIN_S = 1.0
"""A reused connection that ends silently later than this after a request was sent has not been stale: the replica, or
something on the way, gave the request up, and sending it again counts as a retry."""
HOLDING_COMMENT = b": waiting for the replica\n\n"


class Stage:
    """Where an exchange is. Plain numbers: an enumeration's members cost four times as much to look up."""

    WAITING: Final = 0
    """For a replica to become available."""
    CONNECTING: Final = 1
    SENT: Final = 2
    """No output has come."""
    ANSWERING: Final = 3
    """Output has been passed on: the request is committed to its replica."""
    TUNNELLED: Final = 4
    """The replica has switched protocols: the bytes are no longer looked at."""
    ENDED: Final = 5


class Exchange:
    """A request, the attempts at it, and its answer.

    Invariants: at most one ticket is unsettled at a time; once `stage` is `ENDED` nothing more is written to the caller
    for this request; a request is sent to another replica only before output has been passed on and after the
    previous attempt's connection has been let go.
    """

    __slots__ = (
        "_attempts", "_client", "_connecting", "_facts", "_first_output_s", "_kept_answer", "_last_refusal", "_path",
        "_quiet_since_s", "_request", "_sent_s", "_started_s", "_ticket", "_tried", "_until_s", "_upstream", "active",
        "answer", "out", "request_generates", "stage", "usage",
    )  # fmt: skip

    def __init__(
        self, path: "DataPath", client: "ClientConnection", request: "IncomingRequest", route: "Route"
    ) -> None:
        self._path = path
        self._client = client
        self._request = request
        self.out = client.out
        """Where the answer is written."""
        self.request_generates = route.generates
        self.stage: int = Stage.WAITING
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.usage: Usage | None = None
        self.active = False
        """Set by the answer whenever bytes arrive, cleared by `tick`."""
        self._attempts = 0
        self._tried: tuple[int, ...] = ()
        self._ticket: Ticket | None = None
        self._upstream: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._kept_answer: tuple[PlainAnswer, str | None, str] | None = None
        """A replica's own 5xx, that replica's name and the reason for choosing it: passed on if nobody does better."""
        self._last_refusal: Refusal | None = None
        self._first_output_s: float | None = None
        self._started_s = self._sent_s = self._quiet_since_s = monotonic()
        self._until_s = 0.0
        if route.reads_json and not request.encoded:
            self._facts = request_facts.facts_from_json(request.body, request.session_key, request.user_key)
        else:
            self._facts = request_facts.facts_without_json(request.session_key)

    # -- placing

    def start(self) -> None:
        """Place the request for the first time."""
        self._path.counters.in_flight += 1
        self._path.retries.request(self._started_s)
        self._place()

    def _place(self) -> None:
        path = self._path
        began_s = monotonic()
        try:
            decision = path.policy.choose(self._facts, path.fleet.pool(self._facts.model), began_s, self._tried)
            replica = path.fleet.at(decision.slot) if isinstance(decision, Send) else None
        except Exception as error:  # noqa: BLE001 - a user's own policy may raise anything; only this request suffers
            path.report("the policy failed", error)
            self._refuse(POLICY_FAILED)
            return
        now_s = monotonic()
        path.counters.decision_s.observe(now_s - began_s)
        if replica is not None:
            self._attempts += 1
            self._tried += (replica.slot,)
            self.out.replica, self.out.reason = replica.name, decision.reason
            self._send_to(replica, now_s)
        elif isinstance(decision, Wait) and not self._tried:
            self.stage = Stage.WAITING
            self._until_s = decision.until_s
        else:
            self._refuse(self._last_refusal or NO_REPLICA)

    def _send_to(self, replica: "Replica", now_s: float, *, fresh: bool = False) -> None:
        self._ticket = ticket = self._path.fleet.dispatch(replica.slot, self._facts, now_s)
        connection = None if fresh else self._path.connections(ticket.replica).take(now_s)
        if connection is not None:
            self._send_on(connection, now_s)
        else:
            self.stage = Stage.CONNECTING
            self._connecting = self._path.tasks.spawn(self._connect(), name="connect to replica")

    async def _connect(self) -> None:
        assert self._ticket is not None
        connections = self._path.connections(self._ticket.replica)
        try:
            async with asyncio.timeout(self._path.settings.timeouts.connect_s):
                connection = await connections.connect()
        except (OSError, ValueError):  # TimeoutError is an OSError, a bad host name a ValueError
            self._connecting = None
            self.attempt_failed(UNREACHABLE)
            return
        self._connecting = None
        self._send_on(connection, monotonic())

    def _send_on(self, connection: "UpstreamConnection", now_s: float) -> None:
        request = self._request
        body = request.body
        parts = [request.method, b" ", request.target, connection.connections.head, *request.head]
        parts += (b"x-request-id: ", request.request_id)
        if self._path.keys is None:
            for name, value in request.credentials:
                parts += (b"\r\n", name, b": ", value)
        if request.rank is not None and not connection.connections.has_rank:
            parts += (b"\r\nx-data-parallel-rank: ", request.rank)
        if body or request.method == b"POST":
            parts.append(b"\r\ncontent-length: %d\r\n\r\n" % len(body))
        else:
            parts.append(b"\r\n\r\n")
        if request.wants_websocket:
            parts[-1] = b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        self.stage = Stage.SENT
        self._upstream = connection
        self._sent_s = self._quiet_since_s = now_s
        if self.caller_is_slow:
            connection.set_reading(False)
        connection.send(self, b"".join(parts), body)

    # -- the replica's side

    def answer_begins(self, head: AnswerHead) -> None:
        """The head of the answer has come; it says little yet."""
        route = self._request.route
        assert route is not None
        if head.events:
            self.answer = StreamAnswer(self, head, route.stream_end)
        else:
            hold = (route.generates and not head.encoded) or head.status >= 400
            self.answer = PlainAnswer(self, head, hold=hold)

    def answer_ends(self) -> None:
        """The answer's body is complete, and its connection is in the pool again or closed."""
        self._upstream = None
        if self.answer is not None and self.stage != Stage.ENDED:
            self.answer.end()

    def upgraded(self, connection: "UpstreamConnection", head: AnswerHead, rest: bytes) -> None:
        """The replica has switched protocols: from now on bytes are passed on as they come, both ways."""
        if not self._request.wants_websocket:
            self.attempt_failed(MALFORMED)
            return
        self._upstream = None
        self.first_output()
        self.stage = Stage.TUNNELLED
        lines = [status_line(101), *head.lines, b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"]
        self._client.tunnel_to(connection, b"".join(lines), rest)

    def refused(self, kept: PlainAnswer, status: int) -> None:
        """The replica answered with a 5xx: try elsewhere, else pass its own answer on."""
        self._kept_answer = (kept, self.out.replica, self.out.reason)
        refusal = Refusal(status, "replica_error", "the replica answered with an error", "replica")
        self.attempt_failed(Failure(FailureKind.REFUSED, refusal))

    def refused_in_stream(self, refused: RefusedInStream) -> None:
        """The stream's first event is an error: a refusal with a status of its own, whatever the head said."""
        self._drop_upstream()
        outcome = Outcome.FAILED if refused.status >= 500 else Outcome.CALLER_ERROR
        if refused.status >= 500 and self._may_retry(FailureKind.REFUSED):
            self._settle(outcome)
            self._place()
            return
        if self.out.begun:
            self.out.event(refused.body, failed=True)
            self.out.end()
        else:
            retry_after = [(b"retry-after", b"1")] if refused.status == 503 else []
            self.out.whole(refused.status, refused.body, retry_after)
        self._end(outcome, refused.status)

    def attempt_failed(self, failure: Failure) -> None:
        """The attempt is over without an answer, or its answer broke off."""
        if self.stage == Stage.ENDED:
            return
        self._drop_upstream()
        if self.stage == Stage.ANSWERING:
            assert self.answer is not None
            self.answer.broken_off(failure)
            self.failed(failure)
            return
        self.answer = None
        self._last_refusal = failure.refusal
        if failure is STALE and self._ticket is not None:
            replica, now_s = self._ticket.replica, monotonic()
            if now_s - self._sent_s < STALE_WITHIN_S and self._path.fleet.named(replica.name) is replica:
                self._path.counters.stale_connections += 1
                self._settle(Outcome.CANCELLED)
                self._send_to(replica, now_s, fresh=True)
                return
        if self._may_retry(failure.kind):
            self._settle(Outcome.FAILED)
            self._place()
        else:
            self._refuse(failure.refusal)

    def _may_retry(self, kind: FailureKind) -> bool:
        if self._attempts >= self._path.settings.retry.attempts:
            return False
        pool = self._path.fleet.pool(self._facts.model)
        if all(replica.slot in self._tried or not replica.available for replica in pool.replicas):
            return False
        if not self._path.retries.allows(monotonic()):
            return False
        self._path.counters.retries[kind] += 1
        return True

    # -- the caller's side

    def first_output(self) -> None:
        """The answer has begun: from here on the request is committed to its replica."""
        now_s = monotonic()
        self.stage = Stage.ANSWERING
        self._quiet_since_s = now_s
        self._first_output_s = now_s - self._started_s
        self._path.counters.first_output_s.observe(self._first_output_s)
        if self._ticket is not None:
            self._path.fleet.first_output(self._ticket, now_s)
        self._client.release_body(self._request)

    def tunnel_ended(self) -> None:
        """One side of a tunnel has ended, and the other with it. Said once by each side."""
        if self.stage != Stage.ENDED:
            self._client.forget()
            self._end(Outcome.COMPLETED, 101)

    def client_must_close(self) -> None:
        """The answer cannot be completed: the caller must see its connection end."""
        self._client.break_off()

    def complete(self, status: int) -> None:
        """The answer has been passed on whole."""
        outcome = Outcome.FAILED if status >= 500 else Outcome.CALLER_ERROR if status >= 400 else Outcome.COMPLETED
        self._end(outcome, status)

    def failed(self, failure: Failure) -> None:
        """The answer has ended for the caller, and it was not a whole one."""
        self._end(Outcome.FAILED, failure.refusal.status, error=failure.kind)

    def cancel(self) -> None:
        """The caller is gone: the replica must see its peer close at once."""
        if self.stage == Stage.ENDED:
            return
        self._drop_upstream()
        self._end(Outcome.CANCELLED, 499)

    @property
    def caller_is_slow(self) -> bool:
        """Whether the caller has not taken what was written, so that its answer is not read on."""
        return self._client.write_paused

    def follow_pace(self) -> None:
        """The caller has become slow, or has caught up: read its answer accordingly."""
        if self._upstream is not None:
            self._upstream.set_reading(not self.caller_is_slow)

    # -- time

    def tick(self, now_s: float) -> None:
        """Look at the time limits; called about ten times a second."""
        timeouts = self._path.settings.timeouts
        stage = self.stage
        if stage == Stage.ANSWERING:
            if self.active or self._client.write_paused:
                self.active = False
                self._quiet_since_s = now_s
            elif now_s - self._quiet_since_s > timeouts.idle_s:
                self.attempt_failed(TIMED_OUT)
        elif stage == Stage.SENT:
            self._tick_sent(now_s)
        elif stage == Stage.WAITING:
            if now_s - self._started_s > timeouts.first_output_s:
                self._refuse(NO_REPLICA)
            elif now_s >= self._until_s:
                self._place()

    def _tick_sent(self, now_s: float) -> None:
        timeouts = self._path.settings.timeouts
        waited_s = now_s - self._sent_s
        too_late = now_s - self._started_s > timeouts.total_s
        if too_late or (waited_s > timeouts.first_output_s and not self._replica_makes_progress(now_s)):
            self.attempt_failed(TIMED_OUT)
        elif now_s - self._quiet_since_s > timeouts.hold_s and self._facts.stream and self.request_generates:
            self._quiet_since_s = now_s
            if not isinstance(self.answer, PlainAnswer):
                self._hold()

    def _replica_makes_progress(self, now_s: float) -> bool:
        progress_at_s = self._ticket.replica.progress_at_s if self._ticket is not None else None
        return progress_at_s is not None and now_s - progress_at_s < self._path.settings.timeouts.first_output_s

    def _hold(self) -> None:
        self.out.stream_head(200, [b"content-type", b": ", b"text/event-stream; charset=utf-8", b"\r\n"])
        self.out.body(HOLDING_COMMENT)

    # -- ending

    def _refuse(self, refusal: Refusal) -> None:
        self._settle(Outcome.FAILED)
        if self._kept_answer is not None and not self.out.begun:
            self.answer, self.out.replica, self.out.reason = self._kept_answer
            self.answer.pass_on()
            return
        self._path.counters.refusals[refusal.code] += 1
        if self.out.begun:
            self.out.error_event(refusal)
            self.out.end()
        else:
            self.out.whole(refusal.status, error_body(refusal), refusal_headers(refusal))
        self._end(Outcome.FAILED if self._attempts else Outcome.REFUSED, refusal.status, error=refusal.code)

    def _drop_upstream(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None and upstream.exchange is self:
            upstream.let_go()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()

    def _settle(self, outcome: Outcome) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._path.fleet.settle(ticket, outcome, monotonic())

    def _end(self, outcome: Outcome, status: int, error: str | None = None) -> None:
        self._settle(outcome)
        self.stage = Stage.ENDED
        self.answer = self._kept_answer = None  # answers hold the exchange: without the ring, no garbage to collect
        path, request = self._path, self._request
        counters = path.counters
        duration_s = monotonic() - self._started_s
        counters.in_flight -= 1
        route = request.route
        assert route is not None
        counters.requests[route.name, outcome] += 1
        counters.end_to_end_s.observe(duration_s)
        usage = self.usage
        if usage is not None:
            counters.prompt_tokens += usage[0] or 0
            counters.output_tokens += usage[1] or 0
        if path.log is not None:
            path.log.write(self._line(outcome, status, duration_s, error))
        self._client.exchange_ended(request)

    def _line(self, outcome: Outcome, status: int, duration_s: float, error: str | None) -> RequestLine:
        request, facts, route = self._request, self._facts, self._request.route
        prompt_tokens, output_tokens = self.usage or (None, None)
        return RequestLine(
            request.request_id.decode(), route.name if route else "", outcome, status, self.out.replica,
            self.out.reason or None, self._attempts, facts.model, facts.stream, request.key_name, self._first_output_s,
            duration_s, prompt_tokens, output_tokens, error,
        )  # fmt: skip
