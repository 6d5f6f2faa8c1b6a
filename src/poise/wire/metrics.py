"""An engine's metrics page as a `LoadReading`: one neutral set of figures whatever engine and version wrote it."""

from collections.abc import Mapping

from poise.core.reading import LoadReading
from poise.wire.engine_metrics import ENGINES, EngineMetrics
from poise.wire.prometheus import MetricsError, PageScanner, parse_labels, parse_value, sample_pattern

_NAMES = {name.encode(): (engine, fields) for engine in ENGINES for name, fields in engine.names().items()}
_PATTERN = sample_pattern(name.decode() for name in _NAMES)
_KNOWN_ENGINES = ", ".join(engine.engine for engine in ENGINES)

_CACHE_LABELS = (
    ("kv_size_tokens", b"kv_cache_size_tokens"),
    ("kv_blocks", b"num_gpu_blocks"),
    ("block_size_tokens", b"block_size"),
    ("block_size_tokens", b"page_size"),
)

_MOST_DIGITS = 18

Rank = int | None
"""Data-parallel rank of a series, None where the engine does not tell ranks apart."""


def read_metrics(page: bytes, rank: Rank = None) -> LoadReading:
    """What `page` says of one rank, or of the whole server if `rank` is None. Raises `MetricsError`."""
    return EnginePageReader().read(page).reading(rank)


class EnginePageReader:
    """Reads one server's pages, each faster than the first by what it remembers of the one before."""

    def __init__(self) -> None:
        self._scanner = PageScanner(_PATTERN)

    def read(self, page: bytes) -> "EnginePage":
        """All series of `page` that matter. Raises `MetricsError` if it is no metrics page or no known engine's."""
        lines = self._scanner.scan(page)
        if not lines:
            raise MetricsError(
                f"the metrics page has no metric of a known engine ({_KNOWN_ENGINES})",
                hint="check that the url is the engine's own and that its metrics are on",
            )
        engine_page = EnginePage(_NAMES[lines[0][0]][0])
        for name, labels, value in lines:
            engine, fields = _NAMES[name]
            if engine is engine_page.engine:
                engine_page.add(fields, parse_labels(labels), parse_value(value))
        return engine_page


class EnginePage:
    """The series of one page by field and rank. A series whose value is not a number is kept as None: not known."""

    def __init__(self, engine: EngineMetrics) -> None:
        self.engine = engine
        self._series: dict[str, dict[Rank, float | None]] = {}
        self._precedence: dict[str, int] = {}
        self._ranks: set[Rank] = set()

    def add(self, fields: list[tuple[str, int]], labels: Mapping[bytes, bytes], value: float | None) -> None:
        """Add one line of the page, whose name gives `fields`, each with the precedence of that name."""
        engine = self.engine
        if any(labels.get(label, counted) != counted for label, counted in engine.only.items()):
            return
        rank = _whole(labels.get(engine.rank_label)) if engine.rank_label else None
        self._ranks.add(rank)
        for field, precedence in fields:
            if field == "cache":
                self._add_cache(labels, rank)
            elif field == "sleep":
                self._add_sleep(labels, rank, value)
            elif precedence <= self._precedence.get(field, precedence):
                self._add_number(field, precedence, rank, value)

    def reading(self, rank: Rank = None) -> LoadReading:
        """One rank's figures; for None the server as a whole: requests, tokens and capacity are added up.

        KV usage of several ranks is their mean: the server's own balancer spreads requests over the ranks, so there is
        room as long as one rank has some. The server is asleep if any rank is, for a request may be dealt to that one.
        Raises `MetricsError` if `rank` is not among the page's ranks.
        """
        if rank is not None and rank not in self._ranks:
            ranks = ", ".join(str(known) for known in sorted(known for known in self._ranks if known is not None))
            raise MetricsError(
                f"the metrics page has no rank {rank}, it has {ranks or 'no ranks'}",
                hint="check the @rank of the replica's url against the server's data-parallel size",
            )
        running, waiting = self._requests(rank)
        kv = self._mean("kv_usage_ratio", rank)
        asleep = self._sum("asleep", rank)
        return LoadReading(
            running=running,
            waiting=waiting,
            kv_usage_ratio=None if kv is None else min(kv, 1.0),
            asleep=None if asleep is None else asleep > 0,
            kv_capacity_tokens=self._capacity_tokens(rank),
            block_size_tokens=int(self._mean("block_size_tokens", rank) or 0) or None,
            prompt_tokens=self._sum("prompt_tokens", rank),
            generation_tokens=self._sum("generation_tokens", rank),
            prefix_queries_tokens=self._sum("prefix_queries_tokens", rank),
            prefix_hits_tokens=self._sum("prefix_hits_tokens", rank),
            preemptions=self._sum("preemptions", rank),
        )

    def _requests(self, rank: Rank) -> tuple[float | None, float | None]:
        """Running and waiting requests.

        Where both gauges may come late, both missing from an engine that has never generated a token mean 0. From one
        that has, they mean that the engine calls them something else now: unknown.
        """
        missing = "running" not in self._series and "waiting" not in self._series
        if missing and self.engine.late_gauges and self._sum("generation_tokens", rank) == 0:
            return 0.0, 0.0
        return self._sum("running", rank), self._sum("waiting", rank)

    def _capacity_tokens(self, rank: Rank) -> int | None:
        for field in ("kv_capacity_tokens", "kv_size_tokens"):
            if tokens := self._sum(field, rank):
                return int(tokens)
        # The number of blocks that a vLLM server reports for each of its ranks is that of all its ranks together.
        blocks, block_tokens = self._mean("kv_blocks", rank), self._mean("block_size_tokens", rank)
        if not blocks or not block_tokens:
            return None
        ranks = 1 if rank is None else len(self._series["kv_blocks"])
        return int(blocks * block_tokens / ranks)

    def _add_cache(self, labels: Mapping[bytes, bytes], rank: Rank) -> None:
        for field, label in _CACHE_LABELS:
            if label in labels:
                self._series.setdefault(field, {})[rank] = _whole(labels[label])

    def _add_sleep(self, labels: Mapping[bytes, bytes], rank: Rank, value: float | None) -> None:
        if labels.get(b"sleep_state") == b"awake":
            self._series.setdefault("asleep", {})[rank] = None if value is None else float(value == 0)

    def _add_number(self, field: str, precedence: int, rank: Rank, value: float | None) -> None:
        if self._precedence.get(field) != precedence:
            self._precedence[field] = precedence
            self._series[field] = {}
        by_rank = self._series[field]
        so_far = by_rank.get(rank, 0.0)
        by_rank[rank] = None if so_far is None or value is None else so_far + value

    def _sum(self, field: str, rank: Rank) -> float | None:
        by_rank = self._series.get(field)
        if not by_rank:
            return None
        if rank is not None:
            return by_rank.get(rank)
        total = 0.0
        for value in by_rank.values():
            if value is None:
                return None
            total += value
        return total

    def _mean(self, field: str, rank: Rank) -> float | None:
        total = self._sum(field, rank)
        return total if total is None or rank is not None else total / len(self._series[field])


def _whole(label: bytes | None) -> int | None:
    """A label's whole number; None for anything else, such as vLLM's "None"."""
    return int(label) if label is not None and label.isdigit() and len(label) <= _MOST_DIGITS else None
