"""Writes Prometheus' text format. By hand because the page is built in the gateway's own loop: with 64 replicas
prometheus-client takes five times as long."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from poise.report.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Sequence[str], float | None]
"""Label values, in the family's order, and the value; None is unknown and not shown."""


class Kind(StrEnum):
    """What a metric is to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name as it is shown (a counter's ends in `_total`), its kind, help and label names."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def write_samples(family: Family, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of a counter or gauge, each with its line end.

    Label values are written as they are: names that Poise made or checked, which need no escaping.
    """
    yield _head(family)
    pairs = ",".join(f'{label}="%s"' for label in family.labels)
    line = f"{family.name}{{{pairs}}} %s\n" if pairs else f"{family.name} %s\n"
    for values, value in samples:
        if value is not None:
            yield line % (*values, value)


def write_histogram(family: Family, histogram: Histogram) -> Iterator[str]:
    """The lines of a histogram without labels."""
    yield _head(family)
    *below, count = accumulate(histogram.counts)
    for bound, total in zip(histogram.buckets, below, strict=True):
        yield f'{family.name}_bucket{{le="{bound}"}} {total}\n'
    yield f'{family.name}_bucket{{le="+Inf"}} {count}\n'
    yield f"{family.name}_sum {histogram.total}\n{family.name}_count {count}\n"


def _head(family: Family) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
