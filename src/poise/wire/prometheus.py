"""The Prometheus text format, read selectively: a page is scanned for a few names, every other line is skipped."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from poise.core.errors import PoiseError

LARGEST_VALUE = 1e18
"""Above every count of tokens, far enough below the largest float and integer that sums stay exact to handle."""
REMEMBERED_SCANS = 20
"""Ten seconds at the usual interval."""
SMALLEST_SERIES_BYTES = 32
"""A new line of an engine's page is longer: name, labels and value."""
NEAR_BYTES = 64
_LABEL = re.compile(rb'([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAMESPACE = re.compile(r"([A-Za-z]+[:_])(.+)")

Line = tuple[bytes, bytes, bytes]
"""Name, labels without their braces, and value of one line."""


class MetricsError(PoiseError):
    """A metrics page cannot be used; the message says why."""


def sample_pattern(names: Iterable[str]) -> re.Pattern[bytes]:
    """A pattern that finds the sample lines of exactly `names`: groups are name, labels without braces, and value.

    A line is recognised by the line feed before it, so a page is scanned with one put in front: seven times faster than
    `^` with `re.MULTILINE`. Names are grouped by namespace, so that a line of another one costs a single comparison.
    """
    by_namespace: dict[str, list[str]] = {}
    for name in names:
        namespace, rest = _NAMESPACE.fullmatch(name).groups()  # type: ignore[union-attr]
        by_namespace.setdefault(namespace, []).append(re.escape(rest))
    alternatives = "|".join(f"{namespace}(?:{'|'.join(rests)})" for namespace, rests in by_namespace.items())
    return re.compile(rb"\n(" + alternatives.encode() + rb")(?:\{(.*)\})?[ \t]+(\S+)")


class PageScanner:
    """Finds the lines of `pattern` on the pages of one server, and remembers where they were.

    Between two pages values change, the layout hardly ever. So each line is first looked for near its old place, where
    it must be the same up to its value: five times faster. The whole page is scanned if one is not there, if the size
    has changed as by a series, and after `REMEMBERED_SCANS` pages in any case.
    """

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern
        self._places: list[tuple[int, bytes, bytes, bytes]] = []
        self._page_bytes = 0
        self._scans_left = 0

    def scan(self, page: bytes) -> list[Line]:
        """The lines of `page` that the pattern looks for. Raises `MetricsError` if it is no whole page."""
        if not page.endswith(b"\n") or page.lstrip()[:1] in (b"", b"<", b"{", b"["):
            raise _unusable(page)
        lines = None
        if self._scans_left > 0 and abs(len(page) - self._page_bytes) < SMALLEST_SERIES_BYTES:
            self._scans_left -= 1
            lines = self._scan_places(page)
        self._page_bytes = len(page)
        return self._scan_whole(page) if lines is None else lines

    def _scan_places(self, page: bytes) -> list[Line] | None:
        lines = []
        moved = 0
        for place, start, name, labels in self._places:
            near = max(place + moved - NEAR_BYTES, 0)
            at = page.find(start, near, near + len(start) + 2 * NEAR_BYTES)
            if at < 0:
                return None
            moved = at - place
            end = at + len(start)
            value = page[end : page.index(b"\n", end)].split(None, 1)
            if not value:
                return None
            lines.append((name, labels, value[0]))
        return lines

    def _scan_whole(self, page: bytes) -> list[Line]:
        matches = list(self._pattern.finditer(b"\n" + page))
        self._scans_left = REMEMBERED_SCANS
        self._places = [
            (match.start() - 1, match[0][: match.start(3) - match.start()], match[1], match[2] or b"")
            for match in matches
        ]
        return [(match[1], match[2] or b"", match[3]) for match in matches]


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
