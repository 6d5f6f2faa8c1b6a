"""One request's life: placed, sent, answered, retried or refused, settled. The only place where that order is kept."""

from time import monotonic
from typing import TYPE_CHECKING, Final

from poise.admission.queue import Entry
from poise.core.errors import Refusal
from poise.core.request import Outcome, RequestFacts
from poise.fleet.fleet import expected_tokens
from poise.proxy.answer import PlainAnswer, StreamAnswer
from poise.proxy.attempt import Attempt
from poise.proxy.ended import note_end
from poise.proxy.placing import Search
from poise.proxy.request_log import RequestLine
from poise.proxy.retry import DRAINS, MALFORMED, STALE, STOPPED, TIMED_OUT, Failure, FailureKind, refused_with
from poise.proxy.stage import Stage
from poise.wire.answers import RefusedInStream, Usage
from poise.wire.http import AnswerHead, status_line

if TYPE_CHECKING:
    from poise.fleet.replica import Replica
    from poise.proxy.caller import Caller
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest
    from poise.proxy.routes import Route
    from poise.proxy.trail import Trail
    from poise.proxy.upstream import UpstreamConnection

_COMPLETED: Final = Outcome.COMPLETED  # looked up for every request
HOLDING_COMMENT = b": waiting for the replica\n\n"


class Exchange:
    """A request, the attempts at it, and its answer.

    Invariants: at most one attempt is unsettled at a time; once `stage` is `ENDED` nothing more is written to the
    caller for this request; a request is sent to another replica only before output has been passed on and after the
    previous attempt's connection has been let go.
    """

    __slots__ = (
        "_attempt", "_client", "_entry", "_first_output_s", "_kept", "_last_refusal", "_path", "_queue_s",
        "_quiet_since_s", "_request", "_search", "_started_s", "_trail", "active", "answer", "makes_responses", "out",
        "request_generates", "stage", "usage",
    )  # fmt: skip

    def __init__(self, path: "DataPath", client: "Caller", request: "IncomingRequest", facts: RequestFacts) -> None:
        assert request.route is not None
        self._path = path
        self._client = client
        self._request = request
        self._search = Search(path, client, request, facts)
        self.out = client.out
        """Where the answer is written."""
        self.request_generates = request.route.generates
        self.makes_responses = request.route.makes_responses
        self.stage: int = Stage.WAITING
        self.answer: PlainAnswer | StreamAnswer | None = None
        self.usage: Usage | None = None
        self.active = False
        """Set by the answer whenever bytes arrive, cleared by `tick`."""
        self._attempt: Attempt | None = None
        self._kept: tuple[PlainAnswer, Attempt] | None = None
        """A replica's own 5xx: passed on if nobody does better."""
        self._last_refusal: Refusal | None = None
        self._queue_s: float | None = None
        """How long the request waited before it was sent anywhere."""
        self._first_output_s: float | None = None
        self._started_s = self._quiet_since_s = monotonic()
        self._entry: Entry | None = None
        """The place in the queue, None if it does not wait."""
        self._trail: Trail | None = None

    # -- placing

    def start(self) -> None:
        """Place the request for the first time."""
        self._path.counters.in_flight += 1
        self._path.retries.request(self._started_s)
        self._trail = self._path.trails.begin(self._request, self._search.facts, self._started_s)
        if self._path.waiting.must_wait(self._search.facts.model):
            self._wait()
        else:
            self._place()

    def _place(self) -> None:
        if not self.take_turn():
            self._wait()

    def take_turn(self) -> bool:
        """Send the request if a replica has room. Returns whether there is nothing to wait for, so or because it is
        refused."""
        placed = self._search.place(self._trail)
        if placed is None:
            return False
        if isinstance(placed, Refusal):
            self._refuse(self._last_refusal or placed)
        else:
            now_s = monotonic()
            self._entry = None
            if self._queue_s is None:
                self._queue_s = now_s - self._started_s
            self._send_to(placed.replica, placed.reason, now_s)
        return True

    def turn_away(self, refusal: Refusal) -> None:
        """The request has lost its place in the queue."""
        if self.stage == Stage.WAITING:
            self._refuse(refusal)

    def _wait(self) -> None:
        request, facts, home = self._request, self._search.facts, self._search.home
        self.stage = Stage.WAITING
        self._entry = entry = Entry(
            self, model=facts.model, priority=request.priority, key=request.key_name, tokens=expected_tokens(facts),
            retry=self._search.attempts > 0,
        )  # fmt: skip
        if home is not None:
            entry.wait_at(home.name)
        refusal = self._path.waiting.enter(entry)
        if refusal is not None:
            self._refuse(refusal)

    def _send_to(self, replica: "Replica", reason: str, now_s: float, *, fresh: bool = False) -> None:
        ticket = self._path.fleet.dispatch(replica.slot, self._search.facts, now_s)
        self._attempt = attempt = Attempt(self._path, self, self._request, ticket, reason)
        if self._trail is not None:
            attempt.trace_headers = self._trail.sent()
        self._show(attempt)
        self.stage = Stage.CONNECTING
        attempt.start(now_s, fresh=fresh)

    def _show(self, attempt: Attempt) -> None:
        """Whose answer the caller is given, and why."""
        self.out.replica, self.out.reason = attempt.replica.name, attempt.reason + self._request.fallback_note

    def sent(self) -> None:
        """The attempt has a connection, on which the request is being sent."""
        self.stage = Stage.SENT

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
        if self._attempt is not None:
            self._attempt.connection_done()
        if self.answer is not None and self.stage != Stage.ENDED:
            self.answer.end()

    def upgraded(self, connection: "UpstreamConnection", head: AnswerHead, rest: bytes) -> None:
        """The replica has switched protocols: from now on bytes are passed on as they come, both ways."""
        if not self._request.wants_websocket:
            self.attempt_failed(MALFORMED)
            return
        assert self._attempt is not None
        self._attempt.connection_done()
        self.first_output(101)
        self.stage = Stage.TUNNELLED
        lines = [status_line(101), *head.lines, b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"]
        self._client.tunnel_to(connection, b"".join(lines), rest)

    def refused(self, kept: PlainAnswer, status: int, body: bytes) -> None:
        """The replica answered with a 5xx: try elsewhere, else pass its own answer on."""
        assert self._attempt is not None
        failure = refused_with(status, body)
        self._kept = None if failure is DRAINS else (kept, self._attempt)
        self.attempt_failed(failure)

    def refused_in_stream(self, refused: RefusedInStream) -> None:
        """The stream's first event is an error: a refusal with a status of its own, whatever the head said."""
        self._let_go()
        self._note(refused_with(refused.status, refused.body).sign)
        if self._trail is not None:
            self._trail.failed(FailureKind.REFUSED)
        outcome = Outcome.FAILED if refused.status >= 500 else Outcome.CALLER_ERROR
        self._settle(outcome)
        if refused.status >= 500 and self._search.may_go_on(FailureKind.REFUSED):
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
        self._let_go()
        if self._trail is not None:
            self._trail.failed(failure.kind)
        if self.stage == Stage.ANSWERING:
            assert self.answer is not None
            self.answer.broken_off(failure)
            self.failed(failure)
            return
        self.answer = None
        self._last_refusal = failure.refusal
        attempt, now_s = self._attempt, monotonic()
        if failure is STALE and attempt is not None and attempt.may_have_been_stale(now_s):
            self._path.counters.stale_connections += 1
            self._settle(Outcome.CANCELLED)
            self._send_to(attempt.replica, attempt.reason, now_s, fresh=True)
            return
        self._note(failure.sign)
        self._settle(Outcome.FAILED)  # first, as it may leave another replica the best there is
        if self._search.may_go_on(failure.kind):
            self._place()
        else:
            self._refuse(self._search.told_of(failure))

    # -- the caller's side

    def first_output(self, status: int) -> None:
        """The answer has begun: from here on the request is committed to its replica."""
        now_s = monotonic()
        self.stage = Stage.ANSWERING
        self._quiet_since_s = now_s
        self._first_output_s = first_output_s = now_s - self._started_s
        route = self._request.route
        if status < 400 and route is not None and route.timed:
            self._path.counters.times.of(self._search.facts.model).first_output_s.observe(first_output_s)
            if self._attempt is not None:
                self._attempt.first_output(now_s)
        if self._trail is not None:
            self._trail.first_output(now_s)
        self._client.release_body(self._request)

    def remember(self, response_id: str | None) -> None:
        """The replica may have stored the answer, under this id."""
        if response_id is not None and self._attempt is not None:
            self._path.homes.learn(response_id, self._attempt.replica.name, monotonic())

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
        outcome = _COMPLETED if status < 400 else Outcome.CALLER_ERROR if status < 500 else Outcome.FAILED
        self._end(outcome, status)

    def failed(self, failure: Failure) -> None:
        """The answer has ended for the caller, and it was not a whole one."""
        self._note(failure.sign)
        self._end(Outcome.FAILED, failure.refusal.status, error=failure.kind)

    def cancel(self) -> None:
        """The caller is gone: the replica must see its peer close at once."""
        if self.stage == Stage.ENDED:
            return
        self._let_go()
        self._end(Outcome.CANCELLED, 499)

    def stop(self) -> None:
        """The gateway ends now: the caller is told, inside the answer if it has begun."""
        self._request.keep_alive = False
        if self.stage == Stage.TUNNELLED:
            self._client.break_off()
        elif self.stage == Stage.ANSWERING:
            self.attempt_failed(STOPPED)
        else:
            self._let_go()
            self._refuse(STOPPED.refusal)

    @property
    def caller_is_slow(self) -> bool:
        """Whether the caller has not taken what was written, so that its answer is not read on."""
        return self._client.write_paused

    def follow_pace(self) -> None:
        """The caller has become slow, or has caught up: read its answer accordingly."""
        if self._attempt is not None:
            self._attempt.set_reading(not self.caller_is_slow)

    # -- time

    def tick(self, now_s: float) -> None:
        """Look at the time limits; called about ten times a second."""
        timeouts = self._path.settings.timeouts
        stage = self.stage
        if stage == Stage.ANSWERING:
            if self.active or self._client.write_paused:
                if self.active and self._attempt is not None:
                    self._attempt.flows(now_s)
                self.active = False
                self._quiet_since_s = now_s
            elif now_s - self._quiet_since_s > timeouts.idle_s:
                self.attempt_failed(TIMED_OUT)
        elif stage == Stage.SENT:
            self._tick_sent(now_s)
        elif stage == Stage.WAITING:
            entry = self._entry
            if entry is not None and now_s - entry.since_s > self._path.waiting.timeout_s:
                self._refuse(self._path.waiting.timed_out(entry))
            else:
                self._hold_if_quiet(now_s)
        elif stage == Stage.CONNECTING:
            self._hold_if_quiet(now_s)

    def _tick_sent(self, now_s: float) -> None:
        timeouts, attempt = self._path.settings.timeouts, self._attempt
        assert attempt is not None
        late = now_s - attempt.sent_s > timeouts.first_output_s
        too_late = now_s - self._started_s > timeouts.total_s
        if too_late or (late and not attempt.made_progress_within(timeouts.first_output_s, now_s)):
            self.attempt_failed(TIMED_OUT)
        else:
            self._hold_if_quiet(now_s)

    def _hold_if_quiet(self, now_s: float) -> None:
        """Show a streaming caller, who has heard nothing for long, and whatever is between, that it is waited for."""
        quiet = now_s - self._quiet_since_s > self._path.settings.timeouts.hold_s
        if quiet and self._search.facts.stream and self.request_generates:
            self._quiet_since_s = now_s
            if not isinstance(self.answer, PlainAnswer):
                self.out.stream_head(200, [b"content-type", b": ", b"text/event-stream; charset=utf-8", b"\r\n"])
                self.out.body(HOLDING_COMMENT)

    # -- ending

    def _refuse(self, refusal: Refusal) -> None:
        self._settle(Outcome.FAILED)
        if self._kept is not None and not self.out.begun:
            self.answer, attempt = self._kept
            self._show(attempt)
            self.answer.pass_on()
            return
        self._path.counters.refusals[refusal.code] += 1
        if self.out.begun:
            self.out.error_event(refusal)
            self.out.end()
        else:
            self.out.refusal(refusal)
        self._end(Outcome.FAILED if self._search.attempts else Outcome.REFUSED, refusal.status, error=refusal.code)

    def _let_go(self) -> None:
        if self._attempt is not None:
            self._attempt.let_go()

    def _note(self, sign: int) -> None:
        """What the attempt's end will say of the replica."""
        if self._attempt is not None:
            self._attempt.sign = sign

    def _settle(self, outcome: Outcome) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            now_s = monotonic()
            attempt.settle(outcome, now_s)
            if self._trail is not None:
                self._trail.attempt_ended(outcome, now_s)

    def _end(self, outcome: Outcome, status: int, error: str | None = None) -> None:
        self._settle(outcome)
        self.stage = Stage.ENDED
        entry, self._entry = self._entry, None
        if entry is not None:
            self._path.waiting.queue.remove(entry)
        self.answer = self._kept = None  # answers hold the exchange: without the ring, no garbage to collect
        request, route = self._request, self._request.route
        assert route is not None
        if request.execution is not None:
            self._path.keyed.ended(request.execution, outcome)
        note_end(self._path, request, self._line(route, outcome, status, error), route, self._trail)
        self._client.exchange_ended(request)

    def _line(self, route: "Route", outcome: Outcome, status: int, error: str | None) -> RequestLine:
        request, facts = self._request, self._search.facts
        prompt_tokens, output_tokens, cached_tokens = self.usage or (None, None, None)
        return RequestLine(
            request.request_id.decode(), route.name, outcome, status, self.out.replica, self.out.reason or None,
            self._search.attempts, facts.model, facts.stream, request.key_name, self._queue_s, self._first_output_s,
            monotonic() - self._started_s, prompt_tokens, cached_tokens, output_tokens, error, request.asked_model,
        )  # fmt: skip
