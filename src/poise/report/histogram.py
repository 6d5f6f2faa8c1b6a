"""A histogram with fixed buckets and plain integers, cheap enough for the hot path."""

from bisect import bisect_left
from collections.abc import Sequence

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0,
)  # fmt: skip
"""For times that callers see, from a cache hit to a long answer."""
DECISION_BUCKETS_S = (0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.025)
"""For the time that choosing a replica takes."""


class Histogram:
    """Counts of values at or below each bound of `buckets`, the last count being of those above all bounds."""

    __slots__ = ("buckets", "counts", "total")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = tuple(buckets)
        self.counts = [0] * (len(self.buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """Number of values seen."""
        return sum(self.counts)
