"""Requests that carry an `Idempotency-Key`: which are running, which have been answered, and what a second one gets.

Pure: times, keys and answers are passed in. Counterpart: `poise.proxy.keyed`, which runs what is to be run.
"""

from collections import OrderedDict
from dataclasses import dataclass

from poise.core.errors import Refusal

MAX_KEY_BYTES = 255
ENTRY_BYTES = 1024
"""What an entry counts for beside its answer: more than it takes, so that the bound on bytes bounds the number too."""
PASSING_STATUSES = frozenset({408, 409, 425, 429})
"""Statuses of the caller's that may be others a moment later: such an answer is not the last word."""

BAD_KEY = Refusal(
    400, "bad_idempotency_key", f"an Idempotency-Key has 1 to {MAX_KEY_BYTES} bytes", "caller"
)  # fmt: skip
OTHER_BODY = Refusal(
    422, "idempotency_key_reused", "this Idempotency-Key was sent with another request; use a new one", "caller"
)
STREAM_RUNS = Refusal(
    409, "idempotency_key_in_use", "the request with this Idempotency-Key is being answered with a stream", "caller"
)
NOT_KEPT = Refusal(
    409, "idempotency_answer_not_kept",
    "the request with this Idempotency-Key has been answered, with a stream or at a length that is not kept", "caller",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IdempotencySettings:
    """`max_bytes` bounds all kept answers together, `max_age_s` is how long one is kept from its end on."""

    max_bytes: int = 64 * 1024 * 1024
    max_age_s: float = 86400.0


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer that can be given again: status, header lines ready to be joined, body; and who gave it, and why."""

    status: int
    lines: tuple[bytes, ...]
    body: bytes
    replica: str | None
    reason: str

    @property
    def is_final(self) -> bool:
        """Whether the same request would be answered so again: it was carried out, or is wrong."""
        return 200 <= self.status < 500 and self.status not in PASSING_STATUSES


class Execution:
    """One carrying out of a request, by its first caller, and what is kept of it afterwards."""

    __slots__ = ("answer", "ended_at_s", "fingerprint", "kept_bytes", "scope", "streams")

    def __init__(self, scope: bytes, fingerprint: bytes, *, streams: bool) -> None:
        self.scope = scope
        self.fingerprint = fingerprint
        self.streams = streams
        self.answer: KeptAnswer | None = None
        self.ended_at_s: float | None = None
        """None while it runs."""
        self.kept_bytes = 0


class IdempotencyStore:
    """Executions by scope, which is whose key it is and the key, in bytes of constant size.

    Invariants: `kept_bytes` is the sum over those that have ended and never above `settings.max_bytes`; those that run
    are neither counted nor dropped.
    """

    def __init__(self, settings: IdempotencySettings) -> None:
        self.settings = settings
        self.kept_bytes = 0
        self._running: dict[bytes, Execution] = {}
        self._ended: OrderedDict[bytes, Execution] = OrderedDict()
        """Oldest end first."""

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def find(self, scope: bytes, fingerprint: bytes, now_s: float) -> Execution | Refusal | None:
        """What there is for a request: None if it is to be carried out; an execution to wait for or, if it has ended,
        one whose answer is given again; or why the request is refused."""
        self.expire(now_s)
        found = self._running.get(scope) or self._ended.get(scope)
        if found is None:
            return None
        if found.fingerprint != fingerprint:
            return OTHER_BODY
        if found.ended_at_s is None:
            return STREAM_RUNS if found.streams else found
        return NOT_KEPT if found.answer is None else found

    def begin(self, scope: bytes, fingerprint: bytes, *, streams: bool) -> Execution:
        """A request is carried out for which there was nothing."""
        assert scope not in self._running and scope not in self._ended
        execution = self._running[scope] = Execution(scope, fingerprint, streams=streams)
        return execution

    def forget(self, execution: Execution) -> None:
        """It came to nothing that lasts: the next request with its key is carried out."""
        del self._running[execution.scope]

    def end(self, execution: Execution, answer: KeptAnswer | None, now_s: float) -> None:
        """It has been carried out. Without an `answer`, or if that is too long, only that it has been is kept."""
        del self._running[execution.scope]
        kept_bytes = ENTRY_BYTES
        if answer is not None:
            kept_bytes += len(answer.body) + sum(map(len, answer.lines))
            if kept_bytes > self.settings.max_bytes:
                answer, kept_bytes = None, ENTRY_BYTES
        execution.answer, execution.ended_at_s, execution.kept_bytes = answer, now_s, kept_bytes
        self._ended[execution.scope] = execution
        self.kept_bytes += kept_bytes
        while self.kept_bytes > self.settings.max_bytes:
            self._drop_oldest()

    def expire(self, now_s: float) -> None:
        """Drop what is too old."""
        while self._ended:
            oldest = next(iter(self._ended.values()))
            if oldest.ended_at_s is None or now_s - oldest.ended_at_s < self.settings.max_age_s:
                return
            self._drop_oldest()

    def apply(self, settings: IdempotencySettings) -> None:
        """Go by `settings` from now on."""
        self.settings = settings
        while self.kept_bytes > settings.max_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, dropped = self._ended.popitem(last=False)
        self.kept_bytes -= dropped.kept_bytes
