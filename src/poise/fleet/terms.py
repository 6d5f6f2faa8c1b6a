"""The load terms that policies compare: each replica's own, and the worst of all that stands in for unknown ones."""

from collections.abc import Iterable

from poise.routing.load_score import GPU, KV, QUEUE, TIME

Terms = tuple[float | None, float | None, float | None, float | None]
"""KV usage, waiting requests, GPU utilisation and mean request time in seconds, as one replica's reading has them."""

BITS = (KV, QUEUE, GPU, TIME)
UNKNOWN: Terms = (None, None, None, None)


class WorstTerms:
    """The largest known value of each term over the fleet, None for a term that no replica reports.

    A term that one replica lacks counts as the worst of its peers: unknown never beats known. One that all lack is
    dropped for all. Kept up to date term by term, so that a scrape does not cost time for every replica there is.
    """

    __slots__ = ("known", "values")

    def __init__(self) -> None:
        self.values: list[float | None] = list(UNKNOWN)
        self.known = 0
        """Bit mask of the terms that at least one replica reports."""

    def rebuild(self, all_terms: Iterable[Terms]) -> None:
        """Replicas have joined or left."""
        columns = list(zip(*all_terms, strict=True)) or [()] * len(BITS)
        self._set([_largest(column) for column in columns])

    def replace(self, old: Terms, new: Terms, all_terms: Iterable[Terms]) -> bool:
        """One replica's terms are `new` instead of `old`; `all_terms` are those of all, its new ones among them.

        Returns whether that changed any value here.
        """
        values = list(self.values)
        for term, (before, now) in enumerate(zip(old, new, strict=True)):
            worst = values[term]
            if now is not None and (worst is None or now > worst):
                values[term] = now
            elif before is not None and before != now and before == worst:
                return self._set([_largest(column) for column in zip(*all_terms, strict=True)])
        return self._set(values)

    def _set(self, values: list[float | None]) -> bool:
        changed = values != self.values
        self.values = values
        self.known = sum(bit for bit, value in zip(BITS, values, strict=True) if value is not None)
        return changed


def _largest(column: Iterable[float | None]) -> float | None:
    return max((value for value in column if value is not None), default=None)
