"""What the data path counts, as plain integers; `poise.admin` exports them."""

from collections import Counter

from poise.proxy.times import TimesByModel
from poise.report.histogram import DECISION_BUCKETS_S, LATENCY_BUCKETS_S, Histogram


class Counters:
    """Totals since the process started. Written by the data path only."""

    __slots__ = (
        "buffered_bytes", "cached_tokens", "client_connections", "decision_s", "fallbacks", "in_flight",
        "output_tokens", "prompt_tokens", "queue_wait_s", "refusals", "replays", "requests", "retries", "sheds",
        "stale_connections", "times",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """Requests ended, by (route name, outcome)."""
        self.refusals: Counter[str] = Counter()
        """Answers that the gateway made itself, by error code."""
        self.retries: Counter[str] = Counter()
        """Requests sent to another replica, by reason."""
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        """Requests sent to another model's replicas, by model and other model, both as configured."""
        self.replays: Counter[str] = Counter()
        """Requests answered with another one's answer: `joined` while that ran, `stored` afterwards."""
        self.stale_connections = 0
        """Pooled connections that turned out to be closed by the replica when used again."""
        self.sheds = 0
        """Waiting requests that gave way to others because the queue was full."""
        self.in_flight = 0
        self.client_connections = 0
        self.buffered_bytes = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Prompt tokens that replicas did not compute again."""
        self.output_tokens = 0
        self.times = TimesByModel()
        self.queue_wait_s = Histogram(LATENCY_BUCKETS_S)
        """How long those waited who were let through."""
        self.decision_s = Histogram(DECISION_BUCKETS_S)
