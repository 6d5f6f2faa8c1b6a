"""The recent hit rate of a replica's prefix cache, from counters that only ever say totals."""

from typing import Final

HALF_LIFE_S: Final = 30.0
"""After so long a prompt token counts for half of what it did."""
LEAST_TOKENS: Final = 1.0
"""Below this weight of recent prompt tokens there is no rate to speak of."""


class HitRate:
    """Share of prompt tokens found in the prefix cache, those of the last minute counting for most.

    A counter that falls has started again: what it counted meanwhile is left out.
    """

    __slots__ = ("_at_s", "_hits", "_queries", "_recent_hits", "_recent_queries")

    def __init__(self) -> None:
        self._queries: float | None = None
        self._hits: float | None = None
        self._recent_queries = 0.0
        self._recent_hits = 0.0
        self._at_s = 0.0

    @property
    def ratio(self) -> float | None:
        """0..1, None if hardly a prompt was seen of late."""
        return self._recent_hits / self._recent_queries if self._recent_queries >= LEAST_TOKENS else None

    def read(self, queries: float | None, hits: float | None, now_s: float) -> None:
        """Take the counters of one reading: prompt tokens looked up in the cache, and found there."""
        decay = 0.5 ** ((now_s - self._at_s) / HALF_LIFE_S)
        self._recent_queries *= decay
        self._recent_hits *= decay
        self._at_s = now_s
        before, hits_before = self._queries, self._hits
        self._queries, self._hits = queries, hits
        if queries is None or hits is None or before is None or hits_before is None:
            return
        if queries >= before and hits >= hits_before:
            self._recent_queries += queries - before
            self._recent_hits += min(hits - hits_before, queries - before)
