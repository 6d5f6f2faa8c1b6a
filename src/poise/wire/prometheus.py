"""The Prometheus text format, read selectively: a page is scanned for a few names, every other line is skipped."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from poise.core.errors import PoiseError

LARGEST_VALUE = 1e18
"""Above every count of tokens, far enough below the largest float and integer that sums stay exact to handle."""
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAMESPACE = re.compile(r"([A-Za-z]+[:_])(.+)")


class MetricsError(PoiseError):
    """A metrics page cannot be used; the message says why."""


def sample_pattern(names: Iterable[str]) -> re.Pattern[bytes]:
    """A pattern that finds the sample lines of exactly `names`: groups are name, labels without braces, and value.

    A line is recognised by the line feed before it, so pages are scanned with one put in front (see `scan`). That makes
    the scan seven times faster than `^` with `re.MULTILINE`. Names are grouped by their namespace, so that a line of
    another one costs a single comparison.
    """
    by_namespace: dict[str, list[str]] = {}
    for name in names:
        namespace, rest = _NAMESPACE.fullmatch(name).groups()  # type: ignore[union-attr]
        by_namespace.setdefault(namespace, []).append(re.escape(rest))
    alternatives = "|".join(f"{namespace}(?:{'|'.join(rests)})" for namespace, rests in by_namespace.items())
    return re.compile(rb"\n(" + alternatives.encode() + rb")(?:\{(.*)\})?[ \t]+(\S+)")


def scan(page: bytes, pattern: re.Pattern[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """The (name, labels, value) of each line of `page` that `pattern` looks for, in page order.

    Raises `MetricsError` if `page` is not a whole page in the text format.
    """
    if not page.endswith(b"\n") or page.lstrip()[:1] in (b"", b"<", b"{", b"["):
        raise _unusable(page)
    return pattern.findall(b"\n" + page)


@lru_cache(maxsize=1024)
def parse_labels(labels: bytes) -> Mapping[bytes, bytes]:
    """Label names and values (still escaped) in any order; the same label sets come again on every page."""
    return dict(_LABEL.findall(labels))


def parse_value(value: bytes) -> float | None:
    """A sample's value, None for what is no number and for what no figure read here can be: NaN, below 0, infinite."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 <= number <= LARGEST_VALUE else None


def _unusable(page: bytes) -> MetricsError:
    start = page.lstrip()[:1]
    if not start:
        return MetricsError("the metrics page is empty", hint="check that the engine was started with metrics on")
    if start == b"<":
        return MetricsError("the metrics page is HTML", hint="check that the url is the engine's own, not a web page's")
    if start in (b"{", b"["):
        return MetricsError("the metrics page is JSON", hint="turn on the engine's Prometheus metrics")
    return MetricsError("the metrics page is cut off: its last line has no end", hint="check what is in between")
