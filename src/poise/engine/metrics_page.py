"""The `/metrics` page of a simulated engine: vLLM's names and labels, and about as long as a real one.

Nearly all of the page never changes, so it is a template made once, with holes for the numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from poise.report.histogram import Histogram

Numbers = Callable[[], Sequence[float]]
CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"


class MetricsPage:
    """A text of which the holes are filled on every `render`."""

    def __init__(self, started_at: float) -> None:
        self._started = repr(float(started_at))
        self._text: list[str] = []
        self._numbers: list[Numbers] = []
        self._template = ""

    def family(self, name: str, kind: str, description: str) -> None:
        """Begin a family of series."""
        self._fixed(f"# HELP {name} {description}\n# TYPE {name} {kind}\n")

    def series(self, names: Sequence[str], numbers: Numbers) -> None:
        """One line for each of `names` (labels included), filled from what `numbers` returns."""
        for name in names:
            self._fixed(f"{name} ")
            self._text.append("%s\n")
        self._numbers.append(numbers)

    def constant(self, name: str, value: float) -> None:
        """A line that never changes."""
        self._fixed(f"{name} {float(value)!r}\n")

    def counter(self, name: str, description: str, labels: Sequence[str], numbers: Numbers) -> None:
        """A counter and its `_created` gauge, one series for each of `labels`."""
        self.family(f"{name}_total", "counter", description)
        self.series([f"{name}_total{{{label}}}" for label in labels], numbers)
        self._created(name, description, labels)

    def gauge(self, name: str, description: str, labels: Sequence[str], numbers: Numbers) -> None:
        """A gauge, one series for each of `labels`."""
        self.family(name, "gauge", description)
        self.series([f"{name}{{{label}}}" for label in labels], numbers)

    def histogram(self, name: str, description: str, by_label: Mapping[str, Histogram]) -> None:
        """A histogram and its `_created` gauge, one set of series for each label."""
        self.family(name, "histogram", description)
        for label, histogram in by_label.items():
            bounds = [*(repr(float(bound)) for bound in histogram.buckets), "+Inf"]
            first, _, others = label.partition(",")  # labels are sorted, and `le` comes after the first of them
            labels = [",".join(filter(None, (first, f'le="{bound}"', others))) for bound in bounds]
            names = [f"{name}_bucket{{{with_bound}}}" for with_bound in labels]
            names += [_named(f"{name}_count", label), _named(f"{name}_sum", label)]
            self.series(names, _histogram_numbers(histogram))
        self._created(name, description, list(by_label))

    def _created(self, name: str, description: str, labels: Sequence[str]) -> None:
        self.family(f"{name}_created", "gauge", description)
        for label in labels:
            self._fixed(f"{_named(f'{name}_created', label)} {self._started}\n")

    def render(self) -> bytes:
        """The page with the numbers of this moment."""
        if not self._template:
            self._template = "".join(self._text)
        return (self._template % tuple(map(repr, map(float, self._all_numbers())))).encode()

    def _fixed(self, text: str) -> None:
        self._text.append(text.replace("%", "%%"))

    def _all_numbers(self) -> Iterator[float]:
        for numbers in self._numbers:
            yield from numbers()


def _named(name: str, label: str) -> str:
    return f"{name}{{{label}}}" if label else name


def _histogram_numbers(histogram: Histogram) -> Numbers:
    def numbers() -> list[float]:
        cumulative = list(accumulate(histogram.counts, initial=0))[1:]
        return [*cumulative, cumulative[-1], histogram.total]

    return numbers
