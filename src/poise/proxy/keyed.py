"""Requests with an `Idempotency-Key`: carried out once, however often they are sent. Drives `IdempotencyStore`."""

from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

import xxhash

from poise.admission.idempotency import BAD_KEY, MAX_KEY_BYTES, Execution, IdempotencyStore, KeptAnswer
from poise.core.errors import Refusal
from poise.core.request import Outcome
from poise.health.breaker import Sign
from poise.proxy.answer import HELD_PLAIN_BYTES
from poise.proxy.caller import Caller
from poise.proxy.exchange import Exchange
from poise.proxy.gate import check_request
from poise.proxy.recorder import AnswerRecorder
from poise.proxy.request_log import RequestLine
from poise.proxy.retry import LOST, STOPPED, Failure, FailureKind

if TYPE_CHECKING:
    from poise.core.request import RequestFacts
    from poise.proxy.client import ClientConnection
    from poise.proxy.data_path import DataPath
    from poise.proxy.request import IncomingRequest


class KeyedRequests:
    """Finds out what a request with a key gets, and keeps those together that wait for one answer."""

    def __init__(self, path: "DataPath", store: IdempotencyStore) -> None:
        self.store = store
        self._path = path
        self._calls: dict[Execution, SharedCall] = {}

    def begin(self, client: "ClientConnection", request: "IncomingRequest") -> "Exchange | Member | Refusal":
        """What answers `request`, still to be started; or why it is not answered."""
        key = request.idempotency_key or b""
        if not 0 < len(key) <= MAX_KEY_BYTES:
            return BAD_KEY
        scope, fingerprint = _scope(request, key), _fingerprint(request)
        found = self.store.find(scope, fingerprint, monotonic())
        if isinstance(found, Refusal):
            return found
        if found is not None:
            return Member(self._path, client, request, self._calls.get(found), found.answer)
        facts = check_request(self._path, client, request)
        if isinstance(facts, Refusal):
            return facts
        request.execution = execution = self.store.begin(scope, fingerprint, streams=facts.stream)
        if facts.stream:
            return Exchange(self._path, client, request, facts)
        call = self._calls[execution] = SharedCall(self._path, client, request, facts)
        return Member(self._path, client, request, call, None)

    def ended(self, execution: Execution, outcome: Outcome) -> None:
        """The exchange that carried `execution` out has ended; what it failed at may be tried again."""
        call = self._calls.pop(execution, None)
        if call is not None:
            call.outcome = outcome
        answer = None if call is None else call.recorder.kept
        final = outcome is Outcome.COMPLETED
        if answer is not None:
            final = (final or outcome is Outcome.CALLER_ERROR) and answer.is_final
        if final:
            self.store.end(execution, answer, monotonic())
        else:
            self.store.forget(execution)


class SharedCall(Caller):
    """The callers of one exchange whose answer is taken down and given to all of them when it is complete.

    It goes on while one of them waits, whoever sent it first.
    """

    def __init__(
        self, path: "DataPath", client: "ClientConnection", request: "IncomingRequest", facts: "RequestFacts"
    ) -> None:
        self._path = path
        self.members: list[Member] = []
        self.broken = LOST.refusal
        """What all are told if the answer is broken off."""
        self.outcome = Outcome.FAILED
        """How the exchange has ended."""
        self._carried_out = request
        self.out = self.recorder = AnswerRecorder(request, self.account)
        self.write_paused = False
        client.account(-len(request.body))  # the body outlives its caller
        self.account(len(request.body))
        self.exchange: Exchange | None = Exchange(path, self, request, facts)

    def account(self, change_bytes: int) -> None:
        """See `Caller.account`."""
        self._path.counters.buffered_bytes += change_bytes

    def break_off(self) -> None:
        """See `Caller.break_off`. Nobody has been given a part of the answer: it can still be a refusal."""
        self.recorder.refusal(self.broken)

    def exchange_ended(self, request: "IncomingRequest") -> None:
        """See `Caller.exchange_ended`."""
        self.release_body(request)
        self.exchange = None  # it holds this in turn
        members, self.members = self.members, []
        answer = self.recorder.kept
        self.recorder.release()
        for member in members:
            if member.request is not request:
                member.note("joined", self.outcome, answer.status, answer.replica)
            member.give(answer, again=member.request is not request)

    def tick(self, now_s: float) -> None:
        """Look at the limits of time and memory; called about ten times a second."""
        exchange = self.exchange
        if exchange is None:
            return
        if self._path.over_budget and self.recorder.held_bytes > HELD_PLAIN_BYTES:
            self.broken = self._path.buffers_full
            exchange.attempt_failed(Failure(FailureKind.STOPPED, self.broken, Sign.NOTHING))
        else:
            exchange.tick(now_s)

    def leave(self, member: "Member") -> None:
        """One of them has gone. The last one takes the request with it."""
        if member in self.members:
            self.members.remove(member)
            if member.request is not self._carried_out:  # whose end is the exchange's to note
                member.note("joined", Outcome.CANCELLED, 499, None)
            if not self.members and self.exchange is not None:
                self.exchange.cancel()


class Member:
    """One caller's part in a `call`, or in an answer that is there already. To its connection it is an exchange."""

    __slots__ = ("_answer", "_call", "_client", "_path", "request")

    def __init__(
        self, path: "DataPath", client: "ClientConnection", request: "IncomingRequest", call: SharedCall | None,
        answer: KeptAnswer | None,
    ) -> None:  # fmt: skip
        self._path = path
        self._client = client
        self._call = call
        self._answer = answer
        self.request = request

    def start(self) -> None:
        """Carry the request out if this is its first caller, else wait for the answer or give it at once."""
        call, answer = self._call, self._answer
        if answer is not None:
            outcome = Outcome.COMPLETED if answer.status < 400 else Outcome.CALLER_ERROR
            self.note("stored", outcome, answer.status, answer.replica)
            self.give(answer, again=True)
        elif call is not None:
            call.members.append(self)
            if len(call.members) > 1:
                self._client.release_body(self.request)
            elif call.exchange is not None:
                call.exchange.start()

    def give(self, answer: KeptAnswer, *, again: bool) -> None:
        """Write the answer and be done. `again` if it is not this request's own."""
        self._client.out.again(answer, replayed=again)
        self._client.exchange_ended(self.request)

    def cancel(self) -> None:
        """The caller is gone."""
        if self._call is not None:
            self._call.leave(self)

    def stop(self) -> None:
        """The gateway ends now."""
        self.request.keep_alive = False
        if self._call is not None and self._call.exchange is not None:
            self._call.broken = STOPPED.refusal
            self._call.exchange.stop()

    def follow_pace(self) -> None:
        """The answer is written in one piece: there is no pace to follow."""

    def tick(self, now_s: float) -> None:
        """Look at the time limits, for all who wait."""
        call = self._call
        if call is not None and call.exchange is not None and call.members[0] is self:
            call.tick(now_s)

    def note(self, how: str, outcome: Outcome, status: int, replica: str | None) -> None:
        """Count and log a request that ended without being carried out."""
        path, request = self._path, self.request
        route = request.route.name if request.route else ""
        path.counters.requests[route, outcome] += 1
        path.counters.replays[how] += 1
        if path.log is not None:
            path.log.write(
                RequestLine(
                    request.request_id.decode(), route, outcome, status, replica, f"{how} answer", 0, None,
                    False, request.key_name, None, None, 0.0, None, None, None,
                )
            )  # fmt: skip


def _scope(request: "IncomingRequest", key: bytes) -> bytes:
    """Whose key it is, and the key: without API keys of the gateway's, callers differ by what they show the replica."""
    whose = [request.key_name.encode()] if request.key_name is not None else [value for _, value in request.credentials]
    return sha256(b"\0".join([*whose, b"", key])).digest()


def _fingerprint(request: "IncomingRequest") -> bytes:
    """What must be the same for the same key. A caller who makes two bodies with one hash deceives nobody else."""
    return xxhash.xxh3_128_digest(b"%b\0%b" % (request.target, request.body))
