"""Traces: which requests are recorded, under which ids, and on to whoever delivers them. Off unless it is made."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from poise.proxy.trail import Trail
from poise.tracing.sender import Delivery, Sender
from poise.wire.trace_context import read_trace_parent


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """`endpoint` is the URL of an OTLP collector (HTTP). `sample_ratio` is the share of traces that begin here and are
    recorded; a trace that a caller began is recorded if the caller's is."""

    endpoint: str
    sample_ratio: float = 1.0
    service_name: str = "poise"


class RequestTrace:
    """The trace of one request. `span_id` is the request's own span, `parent_id` the caller's, None if it has none."""

    __slots__ = ("_random", "parent_id", "sampled", "span_id", "state", "trace_id")

    def __init__(self, headers: list[bytes], sample_ratio: float, random: Random) -> None:
        parent = read_trace_parent(headers)
        self._random = random
        self.trace_id = _new_id(random, 16) if parent is None else parent.trace_id
        self.parent_id = None if parent is None else parent.span_id
        self.state = b"" if parent is None else parent.state
        self.sampled = random.random() < sample_ratio if parent is None else parent.sampled
        self.span_id = _new_id(random, 8)

    def new_span_id(self) -> bytes:
        """See `TraceContext.new_span_id`."""
        return _new_id(self._random, 8)


class Tracing:
    """Records the traces of requests: see `poise.proxy.trail.Tracer`."""

    def __init__(self, settings: TracingSettings, random: Random, delivery: Delivery) -> None:
        self._ratio = settings.sample_ratio
        self._random = random
        self._sender = Sender(delivery)
        self.ended: Callable[[Trail], None] = self._sender.put

    @property
    def lost(self) -> int:
        """Requests whose traces could not be delivered."""
        return self._sender.lost

    def begin(self, headers: list[bytes]) -> RequestTrace:
        """See `Tracer.begin`."""
        return RequestTrace(headers, self._ratio, self._random)

    def close(self) -> None:
        """Deliver what is left, if that goes quickly."""
        self._sender.close()


def _new_id(random: Random, size_bytes: int) -> bytes:
    return b"%0*x" % (2 * size_bytes, random.getrandbits(8 * size_bytes) or 1)
