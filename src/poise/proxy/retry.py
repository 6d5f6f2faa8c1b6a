"""Whether a request that failed on one replica is sent to another. Pure: time and counts are passed in."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from poise.core.errors import Refusal
from poise.health.breaker import Sign

WINDOW_S = 10.0
"""The retry budget is a share of the requests of this long."""


class FailureKind(StrEnum):
    """What went wrong with one attempt."""

    STALE_CONNECTION = "stale_connection"
    """A pooled connection was closed before a byte of the answer came: the replica never took the request up."""
    UNREACHABLE = "unreachable"
    """No connection could be made: nothing was sent."""
    REFUSED = "refused"
    """The replica answered with an error of its own making (5xx), as a status or inside the stream."""
    LOST = "lost"
    """The connection broke, or the answer ended before it was finished."""
    ABORTED = "aborted"
    """The engine broke the answer off and said so."""
    TIMED_OUT = "timed_out"
    """A time limit ran out."""
    MALFORMED = "malformed"
    """The answer was not HTTP."""
    STOPPED = "gateway_stopped"
    """The gateway had to stop before the answer was complete. Says nothing of the replica."""
    EXHAUSTED = "gateway_exhausted"
    """The gateway can open no more connections. Says nothing of the replica, and another may have an idle one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt. `refusal` is what the caller is told if no other replica is tried.

    `sign` is what it says of the replica.
    """

    kind: FailureKind
    refusal: Refusal
    sign: int = Sign.FAILED


UNREACHABLE = Failure(
    FailureKind.UNREACHABLE,
    Refusal(502, "replica_unreachable", "the replica could not be reached", "replica"),
    Sign.SILENT,
)
NOTHING_LISTENS = Failure(UNREACHABLE.kind, UNREACHABLE.refusal, Sign.UNREACHABLE)
KEY_REFUSED = Failure(
    FailureKind.REFUSED,
    Refusal(502, "replica_key_refused", "the replica refused the key that the gateway has for it", "gateway"),
)
LOST = Failure(
    FailureKind.LOST,
    Refusal(502, "replica_lost", "the replica ended its answer before it was finished", "replica"),
)
ABORTED = Failure(
    FailureKind.ABORTED,
    Refusal(502, "replica_aborted", "the replica broke its answer off", "replica"),
)
MALFORMED = Failure(
    FailureKind.MALFORMED,
    Refusal(502, "replica_malformed", "the replica's answer is not valid HTTP", "replica"),
)
TIMED_OUT = Failure(
    FailureKind.TIMED_OUT,
    Refusal(504, "replica_timeout", "the replica did not answer within the time limit", "replica"),
    Sign.SILENT,
)
STOPPED = Failure(
    FailureKind.STOPPED,
    Refusal(
        503, "gateway_stopped", "the gateway was stopped before the answer was complete", "gateway", retry_after_s=1
    ),
    Sign.NOTHING,
)
EXHAUSTED = Failure(
    FailureKind.EXHAUSTED,
    Refusal(503, "gateway_exhausted", "the gateway can open no more connections", "gateway", retry_after_s=1),
    Sign.NOTHING,
)
STALE = Failure(FailureKind.STALE_CONNECTION, LOST.refusal)

DRAINS = Failure(
    FailureKind.REFUSED,
    Refusal(503, "replica_drains", "the replica shuts down and takes no new request", "replica", retry_after_s=1),
    Sign.DRAINS,
)

DRAINING_WORDS = b"cannot schedule new futures"
"""vLLM's 500 to every new request while it finishes those it has."""


def sign_of_error(status: int, body: bytes) -> int:
    """What an error answer of a replica, given as such or inside a stream, says of the replica.

    A 503 in the shape of an API's error comes from an engine that works and has a full queue; one of another shape
    comes from what stands before a broken one.
    """
    if status < 500 or status == 501 or (status == 503 and body.lstrip().startswith(b"{") and b'"error"' in body):
        return Sign.NOTHING
    return Sign.DRAINS if status == 500 and DRAINING_WORDS in body else Sign.FAILED


def refused_with(status: int, body: bytes) -> Failure:
    """The failure that a replica's own 5xx is."""
    sign = sign_of_error(status, body)
    if sign == Sign.DRAINS:
        return DRAINS
    return Failure(
        FailureKind.REFUSED, Refusal(status, "replica_error", "the replica answered with an error", "replica"), sign
    )


class RetryBudget:
    """Bounds retries to a share of recent requests, with a floor that a small fleet may always use.

    Keeps the times of the last window's requests in one-second slots, so its size does not depend on traffic.
    """

    def __init__(self, ratio: float, floor: int) -> None:
        self.ratio = ratio
        self.floor = floor
        self._slots: deque[tuple[int, int, int]] = deque()

    def request(self, now_s: float) -> None:
        """Count a request."""
        self._add(now_s, 1, 0)

    def allows(self, now_s: float) -> bool:
        """Whether one more retry fits; if so it is counted."""
        self._expire(now_s)
        requests = sum(slot[1] for slot in self._slots)
        retries = sum(slot[2] for slot in self._slots)
        if retries >= max(self.floor, self.ratio * requests):
            return False
        self._add(now_s, 0, 1)
        return True

    def _add(self, now_s: float, requests: int, retries: int) -> None:
        second = int(now_s)
        slots = self._slots
        if slots and slots[-1][0] == second:
            last = slots[-1]
            slots[-1] = (second, last[1] + requests, last[2] + retries)
        else:
            self._expire(now_s)
            slots.append((second, requests, retries))

    def _expire(self, now_s: float) -> None:
        while self._slots and self._slots[0][0] <= now_s - WINDOW_S:
            self._slots.popleft()
