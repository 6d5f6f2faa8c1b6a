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

    Label values are written as they are: see `escaped`.
    """
    yield _head(family)
    pairs = _pairs(family)
    line = f"{family.name}{{{pairs}}} %s\n" if pairs else f"{family.name} %s\n"
    for values, value in samples:
        if value is not None:
            yield line % (*values, value)


def write_histograms(family: Family, histograms: Iterable[tuple[Sequence[str], Histogram]]) -> Iterator[str]:
    """The lines of one histogram for each set of label values."""
    yield _head(family)
    for values, histogram in histograms:
        pairs = _pairs(family) % tuple(values)
        begin, labels = (f"{pairs},", f"{{{pairs}}}") if pairs else ("", "")
        bucket = f'{family.name}_bucket{{{begin}le="'
        *below, count = accumulate(histogram.counts)
        for bound, total in zip(histogram.buckets, below, strict=True):
            yield f'{bucket}{bound}"}} {total}\n'
        yield f'{bucket}+Inf"}} {count}\n'
        yield f"{family.name}_sum{labels} {histogram.total}\n{family.name}_count{labels} {count}\n"


def escaped(value: str) -> str:
    """A label value that others have chosen, such as a model's name, as the format wants it.

    Names that Poise made or checked need no escaping.
    """
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _pairs(family: Family) -> str:
    return ",".join(f'{label}="%s"' for label in family.labels)


def _head(family: Family) -> str:
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
